"""Handing this replica's copy of the weights to another replica, in the background."""

import threading
from dataclasses import dataclass

from services.protocol.weights.weight_bus import SendWeights
from services.rollout_server.weights.weight_staging import CopySource, StagedVersion
from services.transport.gloo import LinkBroken
from services.transport.links import make_link


@dataclass(frozen=True, kw_only=True)
class SendState:
    """How far a send is.

    Attributes:
        done: it has ended.
        error: why it failed, None if it did not.
        sent_bytes: payload bytes, once it is done.
    """

    done: bool
    error: str | None
    sent_bytes: int


class PeerSender:
    """One send of one copy over one link, on a thread of its own; every step has the link's
    deadline, so it ends."""

    def __init__(self, order: SendWeights, copy: StagedVersion | None, address: str) -> None:
        self._order, self._address = order, address
        self._cancelled = False
        self.state = SendState(done=False, error=None, sent_bytes=0)
        if copy is None or copy.manifest.version != order.version:
            self.state = SendState(done=True, error="superseded", sent_bytes=0)
            return
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
            self.state = SendState(done=True, error=str(broken), sent_bytes=0)
        else:
            self.state = SendState(done=True, error=None, sent_bytes=sent)
        finally:
            link.close()
