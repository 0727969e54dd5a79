"""What the gauges show of the replicas that a router knows."""

from collections.abc import Callable, Collection

from services.observability.metrics import RouterMetrics
from services.router.placement.choice import ReplicaChooser


class ReplicaGauges:
    """Sets the gauges, and lets those of replicas that are gone disappear."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(
        self,
        chooser: ReplicaChooser,
        *,
        known: Collection[str],
        leased: Collection[str],
        cap: Callable[[str], int],
        waiting: int,
    ) -> None:
        """Show what is so now.

        Args:
            chooser: knows what is in flight.
            known: all members.
            leased: those that may be given work.
            cap: sequences in flight at which a replica is full.
            waiting: requests in line.
        """
        RouterMetrics.sessions.set(chooser.sessions)
        RouterMetrics.queue.set(waiting)
        for replica in known:
            tags = {"replica": replica}
            RouterMetrics.in_flight.set(chooser.in_flight(replica), tags)
            RouterMetrics.cap.set(cap(replica), tags)
        loads = [chooser.load(replica) for replica in leased]
        RouterMetrics.imbalance.set(max(loads, default=0) - min(loads, default=0))
        for replica in self._shown - set(known):
            RouterMetrics.in_flight.forget({"replica": replica})
            RouterMetrics.cap.forget({"replica": replica})
        self._shown = set(known)
