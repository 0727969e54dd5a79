"""Addresses that programs of a workspace name, and those that a connection may go to.

A name and what it resolves to are two questions. `Target` answers the first: which names and
ports are granted. `NetworkGrant.refusal` answers the second for each address that a name has.
"""

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import idna
import psutil

from services.protocol.errors import InvalidInput

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LONGEST_NAME, _LONGEST_TARGET, _LAST_PORT = 253, 1024, 65535

_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REFUSED = (
    ipaddress.IPv4Network("168.63.129.16/32"),  # Azure's metadata: public by its number
    ipaddress.IPv4Network("192.0.0.0/24"),  # special uses; Oracle's metadata
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays of 6to4
)


class BadTarget(ValueError):
    """No address of the form `host:port`."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A host and a port, each in one spelling only.

    Attributes:
        host: a name in ASCII and small letters without a last dot, or an address as `ipaddress`
            writes it; an IPv4 address inside of an IPv6 one is the IPv4 address.
        port: from 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> Self:
        """Read `host:port`, or `[address]:port`.

        Args:
            text: as a program or a person wrote it.
            default_port: for a host alone; None if the port cannot be left out.

        Raises:
            BadTarget: it is none, or could be read in two ways.
        """
        if len(text) > _LONGEST_TARGET:
            raise BadTarget(f"it has more than {_LONGEST_TARGET} characters")
        if text.startswith("["):
            host, closed, rest = text[1:].partition("]")
            if not closed:
                raise BadTarget("the bracket of an IPv6 address is not closed")
            address = _address(host)
            if address is None or ":" not in host:
                raise BadTarget("there is no IPv6 address in the brackets")
            name, has_port, port = str(plain(address)), rest.startswith(":"), rest[1:]
            if rest and not has_port:
                raise BadTarget("a port follows after `:`")
        else:
            host, separator, port = text.partition(":")
            name, has_port = _name(host), bool(separator)
        if not has_port and default_port is not None:
            return cls(host=name, port=default_port)
        if not _PORT.fullmatch(port) or int(port) > _LAST_PORT:
            raise BadTarget("a port from 1 to 65535 follows after the host")
        return cls(host=name, port=int(port))


def plain(address: IpAddress) -> IpAddress:
    """The IPv4 address of an IPv6 one that stands for it, else the address itself."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _address(text: str) -> IpAddress | None:
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def _name(host: str) -> str:
    """A name, or an IPv4 address, in its one spelling."""
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True, transitional=False).decode("ascii")
        except idna.IDNAError as error:
            raise BadTarget(f"the host is no name: {error}") from None
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # resolvers read 0x7f.1 and 2130706433 as addresses
        address = _address(host)
        if address is None:
            raise BadTarget("a host that ends in a number is an IPv4 address of four parts")
        return str(address)
    if len(host) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadTarget("the host is no name of letters, digits, hyphens and dots")
    return host


@dataclass(frozen=True, kw_only=True)
class AddressPattern:
    """`host:port`, or `*.host:port` for all names below that host.

    Attributes:
        target: the host, without its star.
        below: names below it are meant, and not the host itself.
    """

    target: Target
    below: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a pattern.

        Raises:
            BadTarget: it is none.
        """
        below = text.startswith("*.")
        target = Target.parse(text[2:] if below else text)
        if below and _address(target.host) is not None:
            raise BadTarget("no names are below an address")
        return cls(target=target, below=below)

    def covers(self, other: "AddressPattern | Target") -> bool:
        """Whether all that the other one means is meant by this."""
        below = isinstance(other, AddressPattern) and other.below
        target = other.target if isinstance(other, AddressPattern) else other
        if target.port != self.target.port:
            return False
        if target.host == self.target.host:
            return below == self.below
        return self.below and target.host.endswith(f".{self.target.host}")


class NetworkGrant:
    """What the programs of one workspace may reach.

    Args:
        patterns: addresses that the workspace asked for and may have.
        literals: addresses, each with a port, that the operator named by their numbers.
        never: networks that nobody may reach whose address the operator did not name.
    """

    def __init__(
        self,
        patterns: Sequence[AddressPattern],
        *,
        literals: Collection[Target] = (),
        never: Sequence[IpNetwork] = (),
    ) -> None:
        self._patterns, self._literals = tuple(patterns), frozenset(literals)
        self._never = (*_REFUSED, *never)

    def allows(self, target: Target) -> bool:
        """Whether a program may ask for this host and port."""
        return any(pattern.covers(target) for pattern in self._patterns)

    def refusal(self, address: IpAddress, port: int, own: Collection[IpAddress]) -> str | None:
        """Why a connection may not go to this address, None if it may.

        Args:
            address: of an allowed target.
            port: of that target.
            own: the addresses of this machine.
        """
        address = plain(address)
        if Target(host=str(address), port=port) in self._literals:
            return None
        for one in _stands_for(address):
            if one in own:
                return "it is this machine's own"
            if not _is_public(one):
                return "it is not public"
            if any(one.version == network.version and one in network for network in self._never):
                return "it is never reached"
        return None


class NetworkRules:
    """What the operator lets workspaces reach.

    Args:
        patterns: `host:port` and `*.host:port`. One that names an address by its number allows
            that address even if it is private.
        never: addresses and networks (`203.0.113.0/24`) that no name may lead to, such as the
            public addresses of the cluster.

    Raises:
        InvalidInput: one of them cannot be read.
    """

    def __init__(self, patterns: Sequence[str], *, never: Sequence[str] = ()) -> None:
        self._patterns = _parsed(patterns, field="network")
        self._literals = {
            pattern.target
            for pattern in self._patterns
            if _address(pattern.target.host) is not None
        }
        self._never = [_network(text, number) for number, text in enumerate(never)]

    def grant(self, asked: Sequence[str]) -> NetworkGrant:
        """What a workspace gets that asks for these addresses.

        Raises:
            InvalidInput: the operator does not allow one of them, or it cannot be read.
        """
        patterns = _parsed(asked, field="network")
        for number, pattern in enumerate(patterns):
            if not any(allowed.covers(pattern) for allowed in self._patterns):
                fix = "The operator's list `network` of the sandboxes has no pattern for it."
                raise InvalidInput(f"network.{number}", asked[number], fix)
        return NetworkGrant(patterns, literals=self._literals, never=self._never)


def _parsed(patterns: Sequence[str], *, field: str) -> list[AddressPattern]:
    found = []
    for number, text in enumerate(patterns):
        try:
            found.append(AddressPattern.parse(text))
        except BadTarget as error:
            fix = f"Write host:port or *.host:port: {error}."
            raise InvalidInput(f"{field}.{number}", text, fix) from None
    return found


def _network(text: str, number: int) -> IpNetwork:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        fix = f"Write an address, or a network such as 203.0.113.0/24: {error}."
        raise InvalidInput(f"network_never.{number}", text, fix) from None


def _stands_for(address: IpAddress) -> list[IpAddress]:
    """The address, and those of IPv4 to which it leads through a translator or a tunnel."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    inside = [address.sixtofour, *(address.teredo or ())]
    return [address, *(one for one in inside if one is not None)]


def _is_public(address: IpAddress) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_V6:
        return False
    return address.is_global and not address.is_multicast


def own_addresses() -> set[IpAddress]:
    """The addresses of this machine's interfaces."""
    found = (
        _address(one.address.partition("%")[0])
        for interface in psutil.net_if_addrs().values()
        for one in interface
    )
    return {plain(address) for address in found if address is not None}
