"""The receiving end of one node's or replica's weights: its links, its staged version, its copy."""

import asyncio
from collections.abc import Mapping

import torch

from services.changes import Changes
from services.memory import free_memory
from services.protocol.errors import InvalidInput
from services.protocol.weights.place import Place
from services.protocol.weights.weight_bus import Link, SendWeights, StageWeights, Transport
from services.protocol.weights.weights import WeightManifest
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.links import make_link
from services.transport.peer_sender import PeerSender
from services.transport.shared_memory import HeldBuffer, SharedBuffer
from services.transport.staged_version import StagedVersion, StageFailed
from services.transport.version_bytes import block_bytes

_MIB = 1 << 20


class VersionReceiver:
    """Receives versions into memory that engine workers map; used by one event loop.

    At most one version is staged, and at most one is kept as the copy that changes go onto and
    that others can be given. Others can also be given the one that is arriving.

    Attributes:
        keeps_copy: see `__init__`.
    """

    def __init__(
        self,
        host: str,
        *,
        keeps_copy: bool = False,
        device: torch.device | None = None,
        shared: bool = False,
    ) -> None:
        """Open nothing yet: links are opened by the order that first names them.

        Args:
            host: address of this node on which links listen.
            keeps_copy: keep the bytes of what is committed.
            device: the GPU through which NCCL passes bytes; None where there is none.
            shared: engines of this node may still read a version that is no longer kept, and
                others are given what had changed.
        """
        self._host, self.keeps_copy, self._device = host, keeps_copy, device
        self._shared = shared
        self._links: dict[str, GlooLink] = {}
        self._spare: SharedBuffer | None = None  # fresh pages would cost more than a copy
        self._staged: StagedVersion | None = None
        self._copy: StagedVersion | None = None
        self._sends: dict[str, PeerSender] = {}
        self._changes = Changes()

    @property
    def copy(self) -> WeightManifest | None:
        """The version that is kept."""
        return self._copy.manifest if self._copy is not None else None

    @property
    def place(self) -> Place | None:
        """Where other processes of this node find the version that is kept."""
        return self._copy.buffer.place(0) if self._copy is not None else None

    async def receive(self, order: StageWeights) -> float:
        """Receive and check what is not here yet of a version, in threads of their own.

        Returns:
            Seconds from start to the last checked byte. Every link operation has its own
            deadline, so this ends.

        Raises:
            ValueError: links and manifest do not fit together, or the base is not here.
            InvalidInput: the node has not memory enough for the version.
            StageFailed: a link broke, a deadline passed or bytes were not the manifest's. What
                has arrived stays for the next attempt.
        """
        wanted = {link.prefix for link in order.links}
        self._links = {prefix: link for prefix, link in self._links.items() if prefix in wanted}
        try:
            blocks = await asyncio.to_thread(self._written_blocks, order)
        except BaseException as error:
            self._links = {}
            if isinstance(error, (OSError, RuntimeError, ValueError)):
                raise StageFailed(f"shared memory: {error}") from error
            raise
        staged = await self._place_for(order, blocks)
        try:
            return await asyncio.wrap_future(staged.receive(order.links, self._open, blocks))
        except BaseException:
            # Closes the other links too, so that their senders need not wait.
            self._links = {}
            staged.stop()
            raise

    def staged_at(self) -> Place:
        """Where other processes find the staged version, which is complete."""
        assert self._staged is not None, "received"
        return self._staged.buffer.place(0)

    def keep(self) -> None:
        """The staged version is loaded: it becomes the copy, or its memory is used again."""
        staged, self._staged = self._staged, None
        assert staged is not None, "received"
        if not self._shared:
            staged.forget_changes()
        if not self.keeps_copy:
            self._give_up(staged)
            return
        if self._copy is not None:
            self._give_up(self._copy)
        self._copy = staged

    def forget(self) -> None:
        """Give the memory back: the relay of this node holds what is served."""
        self.abandon()
        if self._copy is not None:
            self._copy.retire()
        self._copy = self._spare = None

    def abandon(self) -> None:
        """Drop what was staged, and links on which bytes may still be under way."""
        if self._staged is not None:
            if not self._staged.complete:
                self._links = {}
            self._give_up(self._staged)
            self._staged = None

    def drop(self, prefix: str) -> None:
        """Forget links whose prefix starts with `prefix`, and what came over them is no vote."""
        if self._staged is not None and not self._staged.complete:
            self._staged.stop()
        self._links = {p: link for p, link in self._links.items() if not p.startswith(prefix)}

    async def send(self, order: SendWeights) -> int:
        """Hand a version to another receiver, in the place of one trainer rank.

        It may still be arriving, or about to.

        Returns:
            Payload bytes. Every link operation has its own deadline, so this ends.

        Raises:
            LinkBroken: the version is not here, the receiver is gone, or the send was called off.
        """
        prefix, version = order.link.prefix, order.version
        if self._shared:  # the order to receive it may be on its way
            known_s = order.link.timeout_s
            await self._changes.until(lambda: self._newest() >= version, timeout_s=known_s)
        held = next((one for one in self._held() if one.manifest.version == version), None)
        if held is None:
            newest = self._newest()
            raise LinkBroken("superseded" if newest > version else f"version {version} is not here")
        sender = self._sends[prefix] = PeerSender(order, held, self._host)
        del held  # its memory goes with the version that takes its place
        try:
            return await asyncio.wrap_future(sender.done)
        finally:
            sender.cancel()
            self._sends.pop(prefix, None)

    def end_sends(self, prefix: str) -> None:
        """Call off sends whose prefix starts with `prefix`."""
        for one, sender in self._sends.items():
            if one.startswith(prefix):
                sender.cancel()

    def close(self) -> None:
        """Drop everything."""
        self.end_sends("")
        self.abandon()
        self._links = {}

    def _held(self) -> tuple[StagedVersion, ...]:
        return tuple(one for one in (self._staged, self._copy) if one is not None)

    def _newest(self) -> int:
        return max((one.manifest.version for one in self._held()), default=-1)

    async def _place_for(
        self, order: StageWeights, blocks: Mapping[int, HeldBuffer]
    ) -> StagedVersion:
        """The version as far as it has come, or a new place for it."""
        manifest, staged = order.manifest, self._staged
        if staged is not None and not staged.complete and staged.manifest == manifest:
            await asyncio.to_thread(staged.stop)
            return staged
        self.abandon()
        base = self._base(order.base)
        if len(blocks) == manifest.world_size and len({one.inode for one in blocks.values()}) == 1:
            buffer = next(iter(blocks.values()))
            self._staged = StagedVersion(manifest, buffer, base=base, is_written=True)
        else:
            self._staged = StagedVersion(manifest, self._memory_for(order), base=base)
        self._changes.notify()
        return self._staged

    def _memory_for(self, order: StageWeights) -> SharedBuffer:
        size = block_bytes(order.manifest)
        if order.in_place and self._copy is not None:
            self._copy.retire()
            self._spare, self._copy = self._own(self._copy), None
        buffer, self._spare = self._spare, None
        if buffer is None or len(buffer.bytes) != size:
            buffer = None  # gives the memory back
            _check_free(size)
            buffer = SharedBuffer(size)
        return buffer

    def _written_blocks(self, order: StageWeights) -> dict[int, HeldBuffer]:
        """The block into which each trainer rank of this node wrote; called in a thread."""
        version = order.manifest.version
        near = [one for one in order.links if one.transport is Transport.SHARED_MEMORY]
        places = {one.trainer_rank: self._open(one).receive_place(version) for one in near}
        return {rank: HeldBuffer(place) for rank, place in places.items()}

    def _give_up(self, version: StagedVersion) -> None:
        version.retire()
        self._spare = None if self._shared else self._own(version)

    @staticmethod
    def _own(version: StagedVersion) -> SharedBuffer | None:
        """Its memory, if this process may write there again."""
        return version.buffer if isinstance(version.buffer, SharedBuffer) else None

    def _base(self, version: int | None) -> StagedVersion | None:
        if version is None:
            return None
        held = self._copy.manifest.version if self._copy is not None else None
        if held != version:
            raise ValueError(f"base: {version} -> The copy here is of version {held}.")
        return self._copy

    def _open(self, link: Link) -> GlooLink:
        """Called by receiving threads; each has a prefix of its own."""
        opened = self._links.get(link.prefix)
        if opened is None:
            opened = make_link(link, self._host, 1, self._device)
            opened.open()
            self._links[link.prefix] = opened
        return opened


def _check_free(needed: int) -> None:
    """Refuse a version for which the kernel would end a process of this node half-way."""
    free = free_memory()
    if needed > free:
        fix = (
            f"A version takes {needed / _MIB:.0f} MiB of shared memory: free some on this node, "
            "lower rollout_server.kv_cache_gb, or use nodes with more."
        )
        raise InvalidInput("memory", f"{free / _MIB:.0f} MiB free", fix)
