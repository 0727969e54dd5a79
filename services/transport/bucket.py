"""One bucket on the wire: whole, as the elements that changed, as nothing at all, or not yet."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, Self

import blake3
import torch
from torch import Tensor

from services.protocol.weights.place import Place

MAGIC = 0x4D494C4C
"""First field of a header; anything else means that the two ends disagree about the stream."""

FIELDS = 11
NO_BASE = -1
DELTA_LIMIT = 0.75
"""A delta larger than this share of the bucket is not worth its work."""

_INDEX_BYTES = 4
_PLACE_FIELDS = ("pid", "fd", "inode", "offset", "serial")


class Kind(IntEnum):
    """The form of a payload."""

    FULL = 0
    DELTA = 1
    SAME = 2
    WAIT = 3  # the sender is there, and the bucket has not come to it yet
    PLACED = 4  # all buckets lie in memory that the receiver can map


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A bucket as it is sent.

    Attributes:
        kind: see `Kind`.
        base: version that the receiver must hold to apply it; `NO_BASE` for `FULL`.
        payload: uint8. For a delta int32 element indexes and then the elements' values
            (not differences: applying them twice does no harm).
    """

    kind: Kind
    base: int
    payload: Tensor


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header before each bucket on a link: `FIELDS` int64 numbers.

    Attributes:
        kind: see `Kind`.
        base: version onto which changes go, `NO_BASE` for a whole bucket.
        size: bytes of the payload, which follows on the link.
        place: of `BucketSource`, for `PLACED`.
    """

    kind: Kind
    base: int
    size: int
    place: Place | None = None

    def pack(self, version: int, bucket: int) -> Tensor:
        """The numbers that announce bucket `bucket` of `version`."""
        place = self.place
        where = [0 if place is None else getattr(place, field) for field in _PLACE_FIELDS]
        return torch.tensor([MAGIC, version, bucket, int(self.kind), self.base, self.size, *where])

    @classmethod
    def unpack(cls, numbers: Tensor, *, version: int, bucket: int, nbytes: int) -> Self:
        """Read a header that must announce this bucket of this version.

        Args:
            numbers: int64.
            version: policy version that must be announced.
            bucket: index that must be announced.
            nbytes: size of the whole bucket by the manifest.

        Raises:
            ValueError: it announces something else.
        """
        magic, announced, index, kind, base, size, *where = numbers.tolist()
        expected = [MAGIC, version, bucket]
        fits = size == nbytes if kind == Kind.FULL else size < max(nbytes, 1)
        if [magic, announced, index] != expected or kind not in tuple(Kind) or not fits:
            raise ValueError(
                f"bucket header is {numbers.tolist()}, expected {expected} and a kind and size "
                f"that fit {nbytes} bytes"
            )
        place = Place(**dict(zip(_PLACE_FIELDS, where, strict=True))) if where[0] else None
        return cls(kind=Kind(kind), base=base, size=size, place=place)


class BucketSource(Protocol):
    """One rank's bytes of one version, as they are sent."""

    @property
    def version(self) -> int:
        """Policy version."""

    @property
    def bucket_count(self) -> int:
        """Buckets of the version."""

    @property
    def place(self) -> Place | None:
        """Where the version's block begins that has this rank's bytes of all buckets, laid out as
        `VersionBytes`; None: nowhere."""

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """The bucket for a receiver that holds `base`; whole if that does not help.

        `NOT_YET`, after a pause, while it has not come here.
        """


def digest(pieces: Iterable[Tensor]) -> str:
    """blake3 hex of a bucket's bytes, given piece by piece (uint8 on the host)."""
    hashed = blake3.blake3()
    for piece in pieces:
        hashed.update(piece.numpy().data)
    return hashed.hexdigest()


def whole(payload: Tensor) -> Encoded:
    """The bucket as it is."""
    return Encoded(kind=Kind.FULL, base=NO_BASE, payload=payload)


NOT_YET = Encoded(kind=Kind.WAIT, base=NO_BASE, payload=torch.empty(0, dtype=torch.uint8))
"""A header without a bucket: the receiver goes on waiting for a sender that waits itself."""


def changes(new: Tensor, old: Tensor, base: int, itemsize: int) -> Encoded | None:
    """The changed elements of a bucket for a receiver that holds `old`; None: almost all are.

    Args:
        new: uint8, the bucket's bytes.
        old: uint8 of the same size, its bytes in version `base`.
        base: version of `old`.
        itemsize: bytes of what is compared as one element, 2 or 4.
    """
    values = new.view(_unit(itemsize))
    changed = torch.nonzero(values != old.view(_unit(itemsize))).flatten()
    if not len(changed):
        return Encoded(kind=Kind.SAME, base=base, payload=new[:0])
    if len(changed) * (_INDEX_BYTES + itemsize) > DELTA_LIMIT * new.numel():
        return None
    index_bytes = changed.to(torch.int32).view(torch.uint8)
    payload = torch.cat([index_bytes, values[changed].view(torch.uint8)])
    return Encoded(kind=Kind.DELTA, base=base, payload=payload)


def apply_changes(encoded: Encoded, bucket: Tensor, itemsize: int) -> None:
    """Turn a bucket's bytes of the base version into those of the new one, in place.

    Raises:
        ValueError: the payload is not what `changes` makes; the bucket is as it was.
    """
    if encoded.kind is Kind.SAME:
        return
    count, rest = divmod(encoded.payload.numel(), _INDEX_BYTES + itemsize)
    if rest:
        raise ValueError(f"a delta of {encoded.payload.numel()} bytes ends inside an element")
    split = count * _INDEX_BYTES
    index = encoded.payload[:split].view(torch.int32).long()
    elements = bucket.view(_unit(itemsize))
    if count and not 0 <= int(index.min()) <= int(index.max()) < elements.numel():
        raise ValueError("a delta points outside its bucket")
    # A copy of its own: values start where their type may not be aligned.
    elements[index] = encoded.payload[split:].clone().view(_unit(itemsize))


def _unit(itemsize: int) -> torch.dtype:
    return torch.int16 if itemsize == 2 else torch.int32
