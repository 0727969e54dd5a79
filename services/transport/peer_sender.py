"""A receiver's copy on its way to another one, in the place of the trainer's ranks."""

import threading
from concurrent.futures import Future

from services.protocol.weights.weight_bus import SendWeights
from services.transport.bucket import Encoded, whole
from services.transport.gloo import LinkBroken
from services.transport.links import make_link
from services.transport.staged_version import StagedVersion

SUPERSEDED = "superseded"


class CopySource:
    """Implements `services.transport.bucket.BucketSource`: a copy in the place of the trainer
    rank that once sent it."""

    def __init__(self, copy: StagedVersion, rank: int) -> None:
        self._copy, self._rank = copy, rank

    @property
    def version(self) -> int:
        """See `BucketSource`."""
        return self._copy.manifest.version

    @property
    def bucket_count(self) -> int:
        """See `BucketSource`."""
        return len(self._copy.manifest.buckets)

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """See `BucketSource`; always whole, for a copy knows no version before its own."""
        return whole(self._copy.bytes.shard_bytes(self._rank, bucket))


class PeerSender:
    """One send of one copy over one link, on a thread of its own; every step has the link's
    deadline, so it ends.

    Attributes:
        done: payload bytes that were sent, or `LinkBroken`.
    """

    def __init__(self, order: SendWeights, copy: StagedVersion, address: str) -> None:
        self._order, self._address = order, address
        self._cancelled = False
        self.done: Future[int] = Future()
        self.done.set_running_or_notify_cancel()
        source = CopySource(copy, order.link.trainer_rank)
        threading.Thread(
            target=self._send, args=(source,), name=f"seed {order.link.prefix}", daemon=True
        ).start()

    def cancel(self) -> None:
        """End at the next bucket, or at the link's deadline."""
        self._cancelled = True

    def _send(self, source: CopySource) -> None:
        link = make_link(self._order.link, self._address)
        try:
            link.open()
            sent = link.send(source, None, cancelled=lambda: self._cancelled)
        except LinkBroken as broken:
            self.done.set_exception(broken)
        else:
            self.done.set_result(sent)
        finally:
            link.close()
