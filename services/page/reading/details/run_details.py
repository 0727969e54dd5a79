"""Parts of a run beside its curves and groups: tasks, held-out answers, log, load, setup."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.json_lines import JsonLines
from services.page.reading.details.alerts import alerts
from services.page.reading.details.heldout_answers import HeldOutAnswers, HeldOutQuery
from services.page.reading.details.log_lines import LogLines, LogQuery
from services.page.reading.details.task_progress import TaskProgress, TasksQuery
from services.page.reading.metric_table import MetricTable
from services.page.reading.revision_cache import RevisionCache
from services.page.reading.run_config import beside_defaults

_LONGEST_DEPLOYMENT = 100_000  # characters


class RunDetails:
    """Answers questions about one run; may be asked from several threads.

    Args:
        path: the run's directory.
        answers: keeps what was answered until the run's files change.
    """

    def __init__(self, path: Path, answers: RevisionCache) -> None:
        self._path, self._answers = path, answers
        self._tasks = TaskProgress(JsonLines(path / "groups.jsonl"))
        self._heldout = HeldOutAnswers(JsonLines(path / "heldout_answers.jsonl"))
        older, newer = (JsonLines(path / f"log.jsonl{part}") for part in (".1", ""))
        self._log = LogLines(older, newer)
        self._usage = MetricTable(JsonLines(path / "usage.jsonl"))

    def tasks(self, query: TasksQuery) -> dict[str, Any]:
        """Rewards and pass rates by what tasks have in common, and by task."""
        return self._answers.get(("tasks", query), lambda: self._tasks.summary(query))

    def heldout(self, query: HeldOutQuery) -> dict[str, Any]:
        """Held-out answers of two evaluations next to each other."""
        return self._answers.get(("heldout", query), lambda: self._heldout.compared(query))

    def log(self, query: LogQuery) -> dict[str, Any]:
        """A page of log lines."""
        return self._answers.get(("log", query), lambda: self._log.find(query))

    def alerts(
        self, overview: Mapping[str, Any], steps: Mapping[str, Sequence[float]]
    ) -> list[dict[str, Any]]:
        """What needs a person's attention; `steps` as `MetricTable.newest`."""
        warnings = self._answers.get("warnings", self._log.warnings)
        return alerts(overview, steps, warnings)

    def usage(self, points: int) -> dict[str, Any]:
        """How busy engines and nodes were, as columns."""
        return self._answers.get(("usage", points), lambda: self._usage.columns(points))

    def setup(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The run's configuration beside the defaults, and its deployment where it is kept."""
        return {"config": beside_defaults(config), "deployment": self._deployment()}

    def _deployment(self) -> str:
        """`deploy.yaml`, as `millrace demo` leaves it in the run directory."""
        try:
            with (self._path / "deploy.yaml").open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_DEPLOYMENT)
        except OSError:
            return ""
