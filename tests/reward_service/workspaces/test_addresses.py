"""Names and numbers that a workspace may reach, in every spelling."""

import ipaddress

import pytest

from services.protocol.errors import InvalidInput
from services.reward_service.workspaces.network.addresses import (
    AddressPattern,
    BadTarget,
    NetworkRules,
    Target,
    own_addresses,
)

ONE_SPELLING = {
    "Example.COM:443": "example.com:443",
    "example.com.:443": "example.com:443",
    "münchen.de:80": "xn--mnchen-3ya.de:80",
    "MÜNCHEN.de:80": "xn--mnchen-3ya.de:80",
    "xn--mnchen-3ya.de:80": "xn--mnchen-3ya.de:80",
    "example。com:80": "example.com:80",
    "1.2.3.4.:80": "1.2.3.4:80",
    "[2001:DB8:0::1]:80": "[2001:db8::1]:80",
    "[::ffff:10.0.0.1]:80": "10.0.0.1:80",
    "[::ffff:a00:1]:80": "10.0.0.1:80",
}

NO_TARGET = [
    "",
    ":80",
    ".:80",
    "a",
    "a:",
    "a:0",
    "a:080",
    "a:+80",
    "a:８０",
    "a:65536",
    "a:80:80",
    "a:80 ",
    "a b:80",
    "a\tb:80",
    "a\0.b:80",
    "a..b:80",
    "-a:80",
    "a-:80",
    "user@a:80",
    "a%2eb:80",
    "a/b:80",
    "a\\b:80",
    "http://a:80",
    "[::1:80",
    "[::1]80",
    "[::1]",
    "[fe80::1%eth0]:80",
    "[1.2.3.4]:80",
    "::1:80",
    "127.1:80",
    "2130706433:80",
    "0x7f.0.0.1:80",
    "0x7f000001:80",
    "017.0.0.1:80",
    "1.2.3.4.5:80",
    "٣.٣.٣.٣:80",
    "a" * 64 + ".b:80",
    ".".join(["a"] * 130) + ":80",
    "a" * 5000 + ":80",
]

NOT_PUBLIC = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "168.63.129.16",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


def refusal(address: str, rules: NetworkRules, port: int = 80, own: tuple = ()) -> str | None:
    return rules.grant(["a.example:80"]).refusal(ipaddress.ip_address(address), port, own)


RULES = NetworkRules(["*.example:80"], never=["203.0.114.0/24"])


@pytest.mark.parametrize("text", ONE_SPELLING)
def test_an_address_has_one_spelling(text: str) -> None:
    assert str(Target.parse(text)) == ONE_SPELLING[text]


@pytest.mark.parametrize("text", NO_TARGET)
def test_what_could_be_read_in_two_ways_is_no_address(text: str) -> None:
    with pytest.raises(BadTarget):
        Target.parse(text)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused_unless_the_operator_names_its_number(
    address: str,
) -> None:
    assert refusal(address, RULES)
    literal = f"[{address}]:80" if ":" in address else f"{address}:80"
    named = NetworkRules(["*.example:80", literal])
    assert refusal(address, named) is None
    assert refusal(address, named, port=81), "the port is part of it"


def test_public_addresses_may_be_reached_and_the_machines_own_may_not() -> None:
    for address in ("93.184.216.34", "2606:4700::1111", "64:ff9b::808:808"):
        assert refusal(address, RULES) is None
    own = (ipaddress.ip_address("93.184.216.34"),)
    assert "own" in str(refusal("93.184.216.34", RULES, own=own))
    assert "own" in str(refusal("::ffff:93.184.216.34", RULES, own=own))
    assert "own" in str(refusal("64:ff9b::5db8:d822", RULES, own=own))
    assert ipaddress.ip_address("127.0.0.1") in own_addresses()


def test_networks_that_the_operator_rules_out_are_never_reached() -> None:
    assert refusal("203.0.115.9", RULES) is None
    assert refusal("203.0.114.9", RULES)
    with pytest.raises(InvalidInput, match=r"network_never\.0"):
        NetworkRules([], never=["here"])


@pytest.mark.parametrize(
    ("pattern", "asked", "covered"),
    [
        ("a.b:80", "a.b:80", True),
        ("a.b:80", "A.B.:80", True),
        ("a.b:80", "a.b:81", False),
        ("a.b:80", "x.a.b:80", False),
        ("a.b:80", "*.a.b:80", False),
        ("*.a.b:80", "x.a.b:80", True),
        ("*.a.b:80", "y.x.a.b:80", True),
        ("*.a.b:80", "a.b:80", False),
        ("*.a.b:80", "xa.b:80", False),
        ("*.a.b:80", "*.a.b:80", True),
        ("*.a.b:80", "*.x.a.b:80", True),
        ("*.x.a.b:80", "*.a.b:80", False),
    ],
)
def test_a_workspace_gets_what_the_operators_patterns_cover(
    pattern: str, asked: str, covered: bool
) -> None:
    assert AddressPattern.parse(pattern).covers(AddressPattern.parse(asked)) is covered
    if covered:
        NetworkRules([pattern]).grant([asked])
    else:
        with pytest.raises(InvalidInput, match=r"network\.0"):
            NetworkRules([pattern]).grant([asked])


def test_a_grant_allows_what_the_workspace_asked_for_and_no_more() -> None:
    grant = NetworkRules(["*.example:80", "10.0.0.1:80"]).grant(["a.example:80"])
    assert grant.allows(Target.parse("A.example.:80"))
    assert not grant.allows(Target.parse("b.example:80"))
    assert not grant.allows(Target.parse("10.0.0.1:80"))
    assert not NetworkRules(["*.example:80"]).grant([]).allows(Target.parse("a.example:80"))


@pytest.mark.parametrize("pattern", ["*", "*:80", "*.:80", "a", "*.1.2.3.4:80", "a.*.b:80"])
def test_a_pattern_that_cannot_be_read_is_named(pattern: str) -> None:
    with pytest.raises(InvalidInput, match=r"network\.0"):
        NetworkRules([pattern])
