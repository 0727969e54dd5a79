"""Keys, their limits, and when a service refuses to do without."""

import asyncio
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.access.api_keys import ApiKey, KeyLimits, KeyRing, KeySource
from services.access.config import AccessConfig
from services.protocol.errors import InvalidInput

SECRET = "a-key-of-some-length"


def test_a_key_is_found_by_itself_or_by_its_hash_and_no_other():
    digest = sha256(b"another-key-of-length").hexdigest()
    text = f"- {{name: alice, key: {SECRET}}}\n- {{name: bob, sha256: {digest}}}\n"
    ring = KeyRing.parse(text, source="keys.yaml")
    assert ring.find(SECRET.encode()).name == "alice"
    assert ring.find(b"another-key-of-length").name == "bob"
    for wrong in (b"", SECRET.encode() + b"x", SECRET[:-1].encode(), digest.encode(), b"\xff"):
        assert ring.find(wrong) is None


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "(whole document)"),
        ("[]", "(whole document)"),
        (f"- {{name: a b, key: {SECRET}}}", "0.name"),
        (f"- {{name: a, key: {SECRET}, rate: 2}}", "0.rate"),
        ("- {name: a, key: secret}", "0.key"),
        ("- {name: a}", "0"),
        (f"- {{name: a, key: {SECRET}, sha256: {'0a' * 32}}}", "0"),
        (f"- {{name: a, key: {SECRET}}}\n- {{name: a, key: {SECRET}x}}", "1.name"),
        (f"- {{name: a, key: {SECRET}}}\n- {{name: b, key: {SECRET}}}", "1.key"),
        (f"- {{name: a, key: {SECRET}", "keys.yaml"),
        (f"- {{name: a, key: {SECRET}}}\n- 2026-13-45", "keys.yaml"),
        ("[" * 5000, "keys.yaml"),
    ],
)
def test_a_bad_key_file_is_refused_by_field_and_shows_no_secret(text, where):
    with pytest.raises(InvalidInput) as problem:
        KeyRing.parse(text, source="keys.yaml")
    assert problem.value.field.endswith(where)
    assert "secret" not in str(problem.value)
    assert SECRET not in str(problem.value)


def test_a_key_does_not_show_in_its_representation():
    assert SECRET not in repr(ApiKey(name="a", key=SECRET))


@given(
    st.floats(0.1, 50),
    st.integers(1, 20),
    st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_more_requests_begin_than_burst_and_rate_allow(rate, burst, pauses):
    limits = KeyLimits(ApiKey(name="a", key=SECRET, requests_per_s=rate, burst=burst), now=0.0)
    now, admitted = 0.0, 0
    for pause in pauses:
        now += pause
        excess = limits.admit(now)
        admitted += excess is None
        if excess is not None:
            now += excess[1] * 1.001 + 1e-9  # a float of this size has no smaller part to wait
            assert limits.admit(now) is None
            admitted += 1
        assert admitted <= burst + rate * now + 1e-6
    assert limits.open == admitted


def test_open_requests_are_bounded_until_one_is_over():
    limits = KeyLimits(ApiKey(name="a", key=SECRET, max_open_requests=2), now=0.0)
    assert [limits.admit(0.0) for _ in range(3)] == [None, None, ("too_many_open", 1.0)]
    limits.release()
    assert limits.admit(0.0) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "node-7.example"])
def test_without_keys_no_service_listens_where_others_reach_it(host):
    with pytest.raises(InvalidInput, match=r"router\.access\.api_keys_file.*http_options\.host"):
        AccessConfig().check(host, service="router")
    AccessConfig(api_keys_file="keys.yaml").check(host, service="router")
    AccessConfig(allow_unauthenticated=True).check(host, service="router")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", None])
def test_on_loopback_no_keys_are_needed(host):
    AccessConfig().check(host, service="router")


@pytest.mark.parametrize(
    "settings",
    [
        {"api_keys_file": "a", "api_keys_env": "B"},
        {"api_keys_file": "a", "allow_unauthenticated": True},
    ],
)
def test_contradictory_settings_are_refused(settings):
    with pytest.raises(InvalidInput, match="leave out"):
        AccessConfig.from_data(settings, source="router")


async def test_a_file_that_crashes_its_reader_is_not_the_last_that_is_read(tmp_path, monkeypatch):
    """Or a key that is taken away later would stay good for ever."""
    path = tmp_path / "keys.yaml"
    path.write_text(f"- {{name: alice, key: {SECRET}}}")
    source = KeySource(AccessConfig(api_keys_file=str(path), reread_s=0.001), service="router")
    source.read()
    heard: asyncio.Queue = asyncio.Queue()
    parse, crashed = KeyRing.parse, asyncio.Event()

    def crashing(text, *, source):
        if text == "crash":
            crashed.set()
            raise RuntimeError(text)
        return parse(text, source=source)

    monkeypatch.setattr(KeyRing, "parse", crashing)
    following = asyncio.create_task(source.follow(heard.put_nowait))
    path.write_text("crash")
    await asyncio.wait_for(crashed.wait(), 300)
    path.write_text(f"- {{name: bob, key: {SECRET}}}")
    ring = await asyncio.wait_for(heard.get(), 300)
    assert set(ring.keys) == {"bob"}
    following.cancel()
