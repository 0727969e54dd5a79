"""The receiving end of one node's or replica's weights: its links, its staged version, its copy."""

import asyncio

import torch

from services.protocol.weights.weight_bus import Link, SendWeights, StageWeights
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.links import make_link
from services.transport.peer_sender import SUPERSEDED, PeerSender
from services.transport.shared_memory import BufferPool, Place
from services.transport.staged_version import StagedVersion


class VersionReceiver:
    """Receives versions into memory that engine workers map; used by one event loop.

    At most one version is staged, and at most one is kept as the copy that changes go onto and
    that others can be given.

    Attributes:
        keeps_copy: see `__init__`.
    """

    def __init__(
        self, host: str, *, keeps_copy: bool = False, device: torch.device | None = None
    ) -> None:
        """Open nothing yet: links are opened by the order that first names them.

        Args:
            host: address of this node on which links listen.
            keeps_copy: keep the bytes of what is committed.
            device: the GPU through which NCCL passes bytes; None where there is none.
        """
        self._host, self.keeps_copy, self._device = host, keeps_copy, device
        self._links: dict[str, GlooLink] = {}
        self._pool = BufferPool()
        self._staged: StagedVersion | None = None
        self._copy: StagedVersion | None = None
        self._sends: dict[str, PeerSender] = {}

    async def receive(self, order: StageWeights) -> float:
        """Receive and check a version in threads of their own.

        Returns:
            Seconds from start to the last checked byte. Every link operation has its own
            deadline, so this ends.

        Raises:
            ValueError: links and manifest do not fit together, or the base is not here.
            StageFailed: a link broke, a deadline passed or bytes were not the manifest's.
        """
        self.abandon()
        wanted = {link.prefix for link in order.links}
        self._links = {prefix: link for prefix, link in self._links.items() if prefix in wanted}
        staged = self._staged = StagedVersion(
            order.manifest, order.links, self._open, pool=self._pool, base=self._base(order.base)
        )
        try:
            return await asyncio.wrap_future(staged.done)
        except BaseException:
            # Closes the other links too, so that their senders need not wait.
            if self._staged is staged:
                self.abandon()
            raise

    def staged_at(self) -> Place:
        """Where other processes find the staged version, which is complete."""
        assert self._staged is not None, "received"
        return self._staged.place

    def keep(self) -> None:
        """The staged version is loaded: it becomes the copy, or its memory is used again."""
        self._copy, self._staged = self._staged if self.keeps_copy else None, None

    def abandon(self) -> None:
        """Drop what was staged, and links on which bytes may still be under way."""
        if self._staged is not None:
            if not self._staged.complete:
                self._links = {}
            self._staged.abandon()
            self._staged = None

    def drop(self, prefix: str) -> None:
        """Forget what was staged, and links whose prefix starts with `prefix`."""
        self.abandon()
        self._links = {p: link for p, link in self._links.items() if not p.startswith(prefix)}

    async def send(self, order: SendWeights) -> int:
        """Hand the copy to another receiver, in the place of one trainer rank.

        Returns:
            Payload bytes. Every link operation has its own deadline, so this ends.

        Raises:
            LinkBroken: there is no such copy, the receiver is gone, or the send was called off.
        """
        copy, prefix = self._copy, order.link.prefix
        if copy is None or copy.manifest.version != order.version:
            raise LinkBroken(SUPERSEDED)
        sender = self._sends[prefix] = PeerSender(order, copy, self._host)
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
