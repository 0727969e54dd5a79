"""Sends a run's figures to its trackers, each from a thread of its own.

A tracker is a foreign library before a foreign server: it may fail and it may hang. Only the
end of a run waits for it, within a deadline.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.protocol.errors import InvalidInput
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.run.tracker import LOGIN, TrackerConfig

CLOSE_S = 20.0
_QUEUE = 1024
_ELSEWHERE = ("step", "evaluations", "heldout_pass_rate", "heldout_step")
"""Of a step's line: the step itself, and what `of_evaluation` gives at the step it is of."""
_log = Log("orchestrator")


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run as a tracker sees it.

    Attributes:
        run_id: under which a resumed run is found again.
        run_dir: where local trackers write.
        config: the run file, as plain data.
    """

    run_id: str
    run_dir: Path
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A tracker whose run is open."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show values of one train step."""

    def rolled_back(self, step: int) -> None:
        """Steps above `step` are done again."""

    def close(self, state: RunState) -> None:
        """The run is over, for now: it may be resumed."""


def missing_packages(trackers: Sequence[TrackerConfig]) -> Iterator[InvalidInput]:
    """A problem for each tracker whose package, of the same name, is not installed here."""
    for tracker in trackers:
        if find_spec(tracker.kind) is None:
            fix = (
                f"The package {tracker.kind} is not installed here: "
                "`pip install 'millrace[trackers]'` where the orchestrator runs."
            )
            yield InvalidInput("trackers", tracker.kind, fix)


def open_tracker(config: TrackerConfig, run: TrackedRun) -> Tracker:
    """Begin, or continue, a run in a tracker; importing the package may take seconds."""
    module = import_module(f"services.orchestrator.trackers.{config.kind}_run")
    tracker: Tracker = module.open_run(config, run)
    return tracker


Open = Callable[[TrackerConfig, TrackedRun], Tracker]
_Send = Callable[[Tracker], None]


class TrackerFeed:
    """One tracker: a bounded queue, and the thread that empties it.

    Args:
        open_it: makes the tracker, in the thread; tried again at the next figures if it fails.
    """

    def __init__(self, kind: str, open_it: Callable[[], Tracker], run_id: str) -> None:
        self._kind, self._open = kind, open_it
        self._run_id = run_id
        self._queue: queue.Queue[tuple[_Send, bool]] = queue.Queue(_QUEUE)
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"tracker-{kind}", daemon=True)
        self._thread.start()

    def put(self, send: _Send) -> None:
        """Queue something to send; if the queue is full, it is lost and counted."""
        try:
            self._queue.put_nowait((send, False))
        except queue.Full:
            self._lost("full", "the queue is full: it does not keep up, or hangs")

    def close(self, state: RunState, deadline: float) -> None:
        """Send the queue and end; give up after the deadline, on the monotonic clock."""
        try:
            timeout = max(0.0, deadline - time.monotonic())
            self._queue.put((lambda tracker: tracker.close(state), True), timeout=timeout)
        except queue.Full:
            self._lost("late", "it still hangs at the end of the run")
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._lost("late", "it has not taken the last figures in time")

    def _run(self) -> None:
        tracker: Tracker | None = None
        last = False
        while not last:
            send, last = self._queue.get()
            try:
                if tracker is None:
                    tracker = self._open()
                send(tracker)
            except Exception as error:  # noqa: BLE001  a tracker must not end the run
                self._lost("error", f"{type(error).__name__}: {error}")

    def _lost(self, reason: str, why: str) -> None:
        tags = {"run": self._run_id, "tracker": self._kind}
        RunMetrics.tracker_losses.inc(1, tags | {"reason": reason})
        if reason not in self._warned:  # the metric counts every loss
            self._warned.add(reason)
            shown = LOGIN.sub("(not shown)", why)[:500]  # of an address in the environment
            _log.warning("tracker_failed", **tags, reason=reason, error=shown)


class Trackers:
    """All trackers of one run; none of the methods but `close` waits or raises."""

    def __init__(
        self, run: RunConfig, *, run_id: str, run_dir: Path, open_it: Open = open_tracker
    ) -> None:
        tracked = TrackedRun(
            run_id=run_id, run_dir=run_dir, config=run.model_dump(mode="json", exclude={"trackers"})
        )
        self._feeds = [
            TrackerFeed(config.kind, partial(open_it, config, tracked), run_id)
            for config in run.trackers
        ]

    def step(self, line: Mapping[str, Any]) -> None:
        """One line of `metrics.jsonl`."""
        step, values = int(line["step"]), of_step(line)
        self._put(lambda tracker: tracker.log(step, values))

    def evaluated(self, evaluation: Evaluation) -> None:
        """One evaluation, at the step at which it began."""
        step, values = evaluation.step, of_evaluation(evaluation)
        self._put(lambda tracker: tracker.log(step, values))

    def rolled_back(self, step: int) -> None:
        """Steps above `step` are done again."""
        self._put(lambda tracker: tracker.rolled_back(step))

    def close(self, state: RunState, *, timeout_s: float = CLOSE_S) -> None:
        """Wait until they have taken what waits, all together at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        for feed in self._feeds:
            feed.close(state, deadline)

    def _put(self, send: _Send) -> None:
        for feed in self._feeds:
            feed.put(send)


def of_step(line: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a line of `metrics.jsonl`; those below a key are named `key/name`."""
    shown = {key: value for key, value in line.items() if key not in _ELSEWHERE}
    numbers = flattened(shown, "/")
    return {name: float(value) for name, value in numbers if isinstance(value, int | float)}


def of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """The figures of one evaluation, below `evaluation/NAME/`."""
    prefix = f"evaluation/{evaluation.name}/"
    figures = {f"{prefix}pass_at_{k}": rate for k, rate in evaluation.pass_at.items()}
    if evaluation.reward is not None:
        figures[f"{prefix}reward"] = evaluation.reward
    return figures | {f"{prefix}graded": evaluation.graded, f"{prefix}seconds": evaluation.seconds}


def flattened(
    values: Mapping[str, Any], separator: str, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """The values of mappings within mappings, each with the keys that lead to it."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value
