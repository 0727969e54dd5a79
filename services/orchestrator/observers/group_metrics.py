"""How the sample groups of a run ended, as metrics."""

from services.observability.metrics import RunMetrics
from services.orchestrator.core.events import Event, GroupClosed, RolledBack


class GroupMetrics:
    """Counts endings: `run_groups` less `run_groups_reopened` is what the ledger has.

    Args:
        run_id: the run.
    """

    def __init__(self, run_id: str) -> None:
        self._tags = {"run": run_id}

    def on(self, event: Event) -> None:
        """See `Observer`."""
        match event:
            case GroupClosed(ending=ending):
                RunMetrics.groups.inc(1, self._tags | {"status": ending})
            case RolledBack(reopened=reopened):
                RunMetrics.groups_reopened.inc(reopened, self._tags)
