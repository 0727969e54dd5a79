"""What precedes every bucket on a link: ten int64 numbers."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from services.transport.bucket import Encoded, Kind
from services.transport.shared_memory import Place

MAGIC = 0x4D494C4C
"""First field; anything else means that the two ends disagree about the stream."""

FIELDS = 10


@dataclass(frozen=True, kw_only=True)
class Header:
    """Which bucket comes next, in which form, and how.

    Attributes:
        version: policy version.
        bucket: index of the bucket.
        kind: see `Kind`.
        base: version onto which changes go, `NO_BASE` for a whole bucket.
        size: bytes of the payload.
        place: where the payload lies; None: it follows on the link.
    """

    version: int
    bucket: int
    kind: Kind
    base: int
    size: int
    place: Place | None

    @classmethod
    def of(cls, version: int, bucket: int, encoded: Encoded, *, in_place: bool) -> Self:
        """The header of a bucket; `in_place`: the receiver can read this process's memory."""
        return cls(
            version=version,
            bucket=bucket,
            kind=encoded.kind,
            base=encoded.base,
            size=encoded.payload.numel(),
            place=encoded.place if in_place and encoded.payload.numel() else None,
        )

    def pack(self) -> Tensor:
        """The numbers."""
        place = self.place
        where = [0] * 4 if place is None else [place.pid, place.fd, place.inode, place.offset]
        fields = [MAGIC, self.version, self.bucket, int(self.kind), self.base, self.size, *where]
        return torch.tensor(fields)

    @classmethod
    def unpack(cls, numbers: Tensor, *, version: int, bucket: int, nbytes: int) -> Self:
        """Read a header that must announce this bucket of this version.

        Args:
            numbers: int64.
            version: policy version that must be announced.
            bucket: index that must be announced.
            nbytes: size of the whole bucket by the manifest.

        Raises:
            ValueError: it says something else.
        """
        magic, announced, index, kind, base, size, pid, fd, inode, offset = numbers.tolist()
        expected = [MAGIC, version, bucket]
        fits = size == nbytes if kind == Kind.FULL else size < max(nbytes, 1)
        if [magic, announced, index] != expected or kind not in tuple(Kind) or not fits:
            raise ValueError(
                f"bucket header is {numbers.tolist()}, expected {expected} and a kind and size "
                f"that fit {nbytes} bytes"
            )
        place = Place(pid=pid, fd=fd, inode=inode, offset=offset) if pid else None
        return cls(
            version=version, bucket=bucket, kind=Kind(kind), base=base, size=size, place=place
        )
