"""Metrics and traces of sample groups, from admission until the trained weights are live.

A train step belongs to every group of its batch. It is a child of the first that is traced,
and linked to the others, whose own `train` spans name it.
"""

from collections.abc import Iterable

from services.observability import tracing
from services.observability.metrics import RunMetrics
from services.observability.tracing import Span
from services.orchestrator.core.events import (
    BatchTaken,
    BatchTrained,
    Event,
    GroupClosed,
    GroupReady,
    GroupStarted,
    RolledBack,
    RunOver,
    VersionLive,
)


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


class GroupTraces:
    """Spans of the open groups of one run; nothing is kept while tracing is off."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._groups: dict[int, Span] = {}
        self._waiting: dict[int, Span] = {}
        self._pushing: list[tuple[int, list[tuple[Span, Span]]]] = []

    def on(self, event: Event) -> None:
        """See `Observer`."""
        match event:
            case GroupStarted():
                self._started(event)
            case GroupReady(group_id=group_id) if group_id in self._groups:
                self._waiting[group_id] = tracing.begin("batch", self.of(group_id))
            case BatchTaken(group_ids=group_ids):
                self._taken(group_ids)
            case BatchTrained(group_ids=group_ids, version=version):
                self._trained(group_ids, version)
            case GroupClosed():
                self._closed(event)
            case VersionLive(version=version):
                self._live(version)
            case RunOver():
                self._close()

    def _started(self, event: GroupStarted) -> None:
        if not tracing.is_on():
            return
        group_id, attempt = event.group_id, event.attempt
        if group_id in self._groups:
            self._waiting.pop(group_id, tracing.OFF).end()
            self._groups[group_id].event("again", attempt=attempt)
            return
        group = tracing.begin("group", {}, run=self._run_id, group=group_id, task=event.task_id)
        group.event("admitted", attempt=attempt)
        self._groups[group_id] = group

    def of(self, group_id: int) -> dict[str, str]:
        """Headers of the group's span, for calls made for it; `{}` without one."""
        return self._groups[group_id].headers if group_id in self._groups else {}

    def _taken(self, group_ids: Iterable[int]) -> None:
        for group_id in group_ids:
            self._waiting.pop(group_id, tracing.OFF).end()

    def _closed(self, event: GroupClosed) -> None:
        """End the span of a closed group, unless its trained weights are not live yet."""
        self._waiting.pop(event.group_id, tracing.OFF).end()
        group = self._groups.pop(event.group_id, None)
        if group is None:
            if event.ending == "trained" or not tracing.is_on():
                return
            # Open again since the trainer went back, and closed before it was started again.
            group = tracing.begin("group", {}, run=self._run_id, group=event.group_id)
        group.set(ending=event.ending)
        if event.ending == "failed":
            group.fail(event.reason)
        group.end()

    def training(self, group_ids: Iterable[int], step: int) -> Span:
        """Begin the span of the train step of these groups; the caller ends it."""
        traced = [group_id for group_id in group_ids if group_id in self._groups]
        if not traced:
            return tracing.OFF
        first, *others = (self._groups[group_id] for group_id in traced)
        links = [group.traceparent for group in others]
        train = tracing.begin("train", first.headers, links=links, step=step)
        for group in others:
            linked = [train.traceparent]
            tracing.begin("train", group.headers, links=linked, step=step).end()
        return train

    def _trained(self, group_ids: Iterable[int], version: int) -> None:
        """The weights trained on these groups are published, and not live yet."""
        groups = [self._groups.pop(one) for one in group_ids if one in self._groups]
        if not groups:
            return
        for group in groups:
            group.set(ending="trained", version=version)
        spans = [(tracing.begin("push", group.headers, version=version), group) for group in groups]
        self._pushing.append((version, spans))

    def _live(self, version: int) -> None:
        """All replicas in service have this version, or a newer one."""
        while self._pushing and self._pushing[0][0] <= version:
            _, spans = self._pushing.pop(0)
            for push, group in spans:
                push.event("live")
                push.end()
                group.end()

    def _close(self) -> None:
        """The run is over: end open spans as unfinished."""
        self._taken(list(self._waiting))
        for _, spans in self._pushing:
            for push, group in spans:
                push.end()
                group.end()
        for group in self._groups.values():
            group.set(ending="in_flight")
            group.end()
        self._groups.clear()
        self._pushing.clear()
