"""The memory into which the ranks of one node write a version, each its own part."""

from dataclasses import dataclass

import torch.distributed as dist

from services.protocol.weights.place import Place
from services.trainer.collectives import all_gather
from services.transport.shared_memory import (
    BufferPool,
    HeldBuffer,
    MappedBuffer,
    Mappings,
    SharedBuffer,
    memory_domain,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """The memory of one version, of which ranks that are elsewhere leave their parts untouched.

    Attributes:
        buffer: in this process.
        place: where processes of this node find it.
        held: nobody writes there again while this lives; None in the process that owns it.
    """

    buffer: SharedBuffer | MappedBuffer
    place: Place
    held: HeldBuffer | None


class NodeBlocks:
    """Blocks that are used again, once no rank sends and no engine loads from them.

    The first rank of each node owns them, and the others map them.

    Args:
        nbytes: of a block.
        senders: ranks that write; the others hold copies of the same model.
    """

    def __init__(self, nbytes: int, senders: int) -> None:
        domains = all_gather(memory_domain())[:senders]
        self._rank, self._nbytes = dist.get_rank(), nbytes
        self._owner = domains.index(memory_domain()) if self._rank < senders else None
        self._pool, self._mappings = BufferPool(), Mappings()

    def take(self) -> Block | None:
        """A block that nobody reads; None on ranks that do not write. Collective."""
        owned = self._pool.take(self._nbytes) if self._owner == self._rank else None
        places = all_gather(None if owned is None else owned.place(0))
        if owned is not None:
            return Block(buffer=owned, place=owned.place(0), held=None)
        place = None if self._owner is None else places[self._owner]
        if place is None:
            return None
        return Block(buffer=self._mappings.buffer(place), place=place, held=HeldBuffer(place))

    def give(self, block: Block) -> None:
        """This process no longer uses the block."""
        if isinstance(block.buffer, SharedBuffer):
            self._pool.give(block.buffer)
