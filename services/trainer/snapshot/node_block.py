"""The memory into which ranks write a version: together, where all are on one node."""

from dataclasses import dataclass

import torch.distributed as dist

from services.memory import free_memory
from services.protocol.errors import InvalidInput
from services.protocol.weights.place import Place
from services.trainer.collectives import all_gather
from services.trainer.sizing.host import SNAPSHOT_BUFFERS
from services.transport.shared_memory import (
    BufferPool,
    HeldBuffer,
    MappedBuffer,
    Mappings,
    SharedBuffer,
    memory_domain,
)

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Block:
    """The memory of one version.

    Attributes:
        buffer: in this process.
        place: where processes of this node find it.
        held: nobody writes there again while this lives; None in the process that owns it.
        is_filled: every part is written. Else the other ranks' parts are left untouched, which
            takes no memory unless the block is registered with CUDA.
    """

    buffer: SharedBuffer | MappedBuffer
    place: Place
    held: HeldBuffer | None
    is_filled: bool


class NodeBlocks:
    """Blocks that are used again, once no rank sends and no engine loads from them.

    Where all ranks are on one node, the first owns them, and the others map them. Where they are
    not, each has blocks of its own, since receivers would fill the parts of ranks elsewhere.

    Args:
        nbytes: of a block.
        senders: ranks that write; the others hold copies of the same model.

    Raises:
        InvalidInput: a node has not the memory for them.
    """

    def __init__(self, nbytes: int, senders: int) -> None:
        domains = all_gather(memory_domain())[:senders]
        self._rank, self._nbytes = dist.get_rank(), nbytes
        self._together = len(set(domains)) == 1
        self._owner: int | None = 0 if self._together else self._rank
        if self._rank >= senders:
            self._owner = None
        self._pool, self._mappings = BufferPool(), Mappings()
        self._check_free(domains)

    def _check_free(self, domains: list[str]) -> None:
        """Refuse what the kernel would end a rank for, on all ranks. Collective."""
        here = domains.count(domains[self._rank]) / len(domains) if self._owner is not None else 0
        needed, free = SNAPSHOT_BUFFERS * self._nbytes * here, free_memory()
        for rank, (wanted, found) in enumerate(all_gather((needed, free))):
            if wanted > found:
                fix = (
                    f"The versions that the node of rank {rank} keeps for the weight bus take "
                    f"{wanted / _MIB:.0f} MiB: free some, spread the ranks over more nodes, or "
                    "take nodes with more."
                )
                raise InvalidInput("memory", f"{found / _MIB:.0f} MiB free", fix)

    def take(self) -> Block | None:
        """A block that nobody reads; None on ranks that do not write. Collective."""
        owned = self._pool.take(self._nbytes) if self._owner == self._rank else None
        places = all_gather(None if owned is None else owned.place(0))
        place = None if self._owner is None else places[self._owner]
        if place is None:
            return None
        return Block(
            buffer=owned or self._mappings.buffer(place),
            place=place,
            held=None if owned is not None else HeldBuffer(place),
            is_filled=self._together,
        )

    def give(self, block: Block) -> None:
        """This process no longer uses the block."""
        if isinstance(block.buffer, SharedBuffer):
            self._pool.give(block.buffer)
