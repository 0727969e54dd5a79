"""A receiver's version on its way to another receiver, in the place of the trainer's ranks."""

import threading
import weakref
from concurrent.futures import Future

from services.protocol.weights.weight_bus import SendWeights
from services.transport.bucket import Encoded, Kind
from services.transport.gloo import LinkBroken
from services.transport.links import make_link
from services.transport.staged_version import StagedVersion

PATIENCE = 10
"""Deadlines of a link for which a sender waits for a bucket itself; the bus gives up earlier."""


class StagedSource:
    """Implements `services.transport.bucket.BucketSource`: a version that is here or arrives, in
    the place of the trainer rank that sent it."""

    def __init__(self, staged: StagedVersion, rank: int, link_timeout_s: float) -> None:
        """`link_timeout_s` is how long the receiver bears silence."""
        self._staged, self._rank = staged, rank
        self._pause_s, self._patience_s = link_timeout_s / 4, PATIENCE * link_timeout_s
        self._waited_s = 0.0

    @property
    def version(self) -> int:
        """See `BucketSource`."""
        return self._staged.manifest.version

    @property
    def bucket_count(self) -> int:
        """See `BucketSource`."""
        return len(self._staged.manifest.buckets)

    @property
    def place(self) -> None:
        """See `BucketSource`. Receivers of this node are told by the bus."""

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """See `BucketSource` and `StagedVersion.encoded`.

        Raises:
            LinkBroken: another version takes this one's place, or it stands still for too long.
        """
        found = self._staged.encoded(self._rank, bucket, base, self._pause_s)
        self._waited_s = self._waited_s + self._pause_s if found.kind is Kind.WAIT else 0.0
        if self._waited_s > self._patience_s:
            raise LinkBroken(f"bucket {bucket} has not come in {self._waited_s:g} s")
        return found


class PeerSender:
    """One send of one version over one link, on a thread of its own; every step has the link's
    deadline, so it ends.

    Attributes:
        done: payload bytes that were sent, or `LinkBroken`.
    """

    def __init__(self, order: SendWeights, staged: StagedVersion, address: str) -> None:
        self._order, self._address = order, address
        self._cancelled = False
        self.done: Future[int] = Future()
        self.done.set_running_or_notify_cancel()
        # A link that cannot be opened must not hold the memory of a version that is superseded.
        args = (weakref.ref(staged),)
        name = f"seed {order.link.prefix}"
        threading.Thread(target=self._send, args=args, name=name, daemon=True).start()

    def cancel(self) -> None:
        """End at the next bucket, or at the link's deadline."""
        self._cancelled = True

    def _send(self, staged: "weakref.ref[StagedVersion]") -> None:
        link = make_link(self._order.link, self._address)
        try:
            link.open()
            source = self._source(staged)
            sent = link.send(source, self._order.base, cancelled=lambda: self._cancelled)
        except LinkBroken as broken:
            # Only its words: its frames know this thread's version, and `done` is known to them.
            # The memory would stay until Python looks for circles.
            self.done.set_exception(LinkBroken(str(broken)))
        else:
            self.done.set_result(sent)
        finally:
            link.close()

    def _source(self, staged: "weakref.ref[StagedVersion]") -> StagedSource:
        held = staged()
        if held is None:
            raise LinkBroken("superseded")
        return StagedSource(held, self._order.link.trainer_rank, self._order.link.timeout_s)
