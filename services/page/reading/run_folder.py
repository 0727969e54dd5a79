"""One run directory, as the page reads it."""

import sqlite3
from pathlib import Path
from typing import Any

from services.json_lines import JsonLines
from services.ledger.ledger import LEDGER_FILE, reading
from services.ledger.sample_group import GroupQuery
from services.page.reading.comparison.curves import CURVES, Line, line_of, measured_line
from services.page.reading.comparison.run_figures import pass_rates
from services.page.reading.details.alerts import NEWEST
from services.page.reading.details.run_details import RunDetails
from services.page.reading.group_lines import GroupLines
from services.page.reading.metric_table import AXES, Axis, MetricTable
from services.page.reading.revision_cache import RevisionCache
from services.page.reading.run_files import RunFiles, is_number, mark, state_of
from services.page.reading.timeline_reading import TimelineReading
from services.page.reading.token_pieces import TokenPieces
from services.page.reading.trajectory_index import MOST_SIBLINGS, TrajectoryIndex, TrajectoryQuery
from services.protocol.errors import InvalidInput

_MARKS = ("config.yaml", LEDGER_FILE)
_LINES = (
    "metrics",
    "evaluations",
    "heldout_answers",
    "trajectories",
    "tokens",
    "groups",
    "timeline",
    "usage",
    "log",
    "notes",
)
_MOST_EVALUATIONS = 2000


class RunFolder:
    """Answers the page's questions about one run; may be asked from several threads.

    Whatever a kill left half-written is read as far as it is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger = path / LEDGER_FILE
        self.files = RunFiles(path)
        self._metrics = MetricTable(JsonLines(path / "metrics.jsonl"))
        self._evaluations = JsonLines(path / "evaluations.jsonl")
        self._tokens = TrajectoryIndex(JsonLines(path / "tokens.jsonl"))
        self._texts = TrajectoryIndex(JsonLines(path / "trajectories.jsonl"))
        self._groups = GroupLines(JsonLines(path / "groups.jsonl"))
        older, newer = (JsonLines(path / f"timeline{part}.jsonl") for part in (".1", ""))
        self._timeline = TimelineReading(older, newer)
        self._pieces = TokenPieces(path)
        self._answers = RevisionCache(self.revision)
        self.details = RunDetails(path, self._answers)

    @classmethod
    def open(cls, path: str | Path, field: str = "RUN_DIR") -> "RunFolder":
        """Find a run's folder.

        Raises:
            InvalidInput: there is none.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise InvalidInput(field, str(path), "There is no such folder.")
        missing = [name for name in _MARKS if not (folder / name).is_file()]
        if missing:
            fix = f"It is no run directory: it has no {' and no '.join(missing)}."
            raise InvalidInput(field, str(path), fix)
        return cls(folder)

    @property
    def run_id(self) -> str:
        """The run's id: the folder's name."""
        return self.path.resolve().name

    @property
    def is_there(self) -> bool:
        """False once its directory was removed, or its disk has gone."""
        return (self.path / _MARKS[0]).exists()

    def revision(self) -> list[list[float]] | None:
        """A value that differs whenever a file of the run has changed; None once it is gone."""
        if not self.is_there:
            return None
        found = []
        for name in _LINES:
            found.append(mark(self.path / f"{name}.jsonl"))
        for name in (LEDGER_FILE, f"{LEDGER_FILE}-wal", "summary.json", "error.txt"):
            found.append(mark(self.path / name))
        return found

    @property
    def _trajectories(self) -> TrajectoryIndex:
        """Those kept token by token; before the first train step, and of a run from before
        tokens were kept, those kept as text."""
        return self._tokens if self._tokens.look() else self._texts

    def overview(self) -> dict[str, Any]:
        """The run's configuration, state and newest figures."""
        try:
            account = self._answers.get("account", self._account)
        except sqlite3.Error as error:
            account = {"flow": None, "facts": {}, "ledger_problem": str(error)}
        return self._answers.get("overview", self._standing) | account

    def _account(self) -> dict[str, Any]:
        with reading(self._ledger) as ledger:
            return {"flow": ledger.flow(), "facts": ledger.facts()}

    def _standing(self) -> dict[str, Any]:
        config, summary, error = self.files.config(), self.files.summary(), self.files.error()
        last, trajectories = self._metrics.last(), self._trajectories
        steps = int(last.get("step", 0))
        return {
            "run_id": self.run_id,
            "path": str(self.path),
            "config": config,
            "summary": summary,
            "error": error,
            "step": steps,
            "steps": config.get("steps"),
            "state": state_of(steps, config.get("steps"), summary, error),
            "written_at": max((one[1] for one in self.revision() or []), default=0.0),
            "last": last,
            "trajectories": trajectories.look(),
            "verdicts": trajectories.verdicts,
        }

    def curves(self, points: int) -> dict[str, Any]:
        """Train steps as columns, what they can be drawn over, and every evaluation."""

        def find() -> dict[str, Any]:
            columns = self._metrics.columns(points)
            axes = {
                axis: next((columns[name] for name in names if name in columns), [None])
                for axis, names in AXES.items()
            }
            return {
                "columns": columns,
                "axes": {axis: places for axis, places in axes.items() if None not in places},
                "evaluations": self._placed_evaluations(),
            }

        return self._answers.get(("curves", points), find)

    def _placed_evaluations(self) -> list[dict[str, Any]]:
        """The newest ones; `at` is their place on each axis."""
        count = self._evaluations.look()
        lines = self._evaluations.since(max(0, count - _MOST_EVALUATIONS), dict)
        known = [(line, line.get("step")) for _, line in lines if line is not None]
        return [
            line | {"at": {axis: self._metrics.place(step, axis) for axis in AXES}}
            for line, step in known
            if is_number(step)
        ]

    def alerts(self, status: dict[str, Any] | None) -> list[dict[str, Any]]:
        """What of the run needs a person's attention."""
        steps = self._answers.get("newest", lambda: self._metrics.newest(NEWEST))
        return self.details.alerts(self.overview() | {"status": status}, steps)

    def lines(self, axis: Axis, smoothing: float, points: int) -> dict[str, Line]:
        """The curves that are compared between runs, by column."""

        def find() -> dict[str, Line]:
            names = (curve.column for curve in CURVES)
            drawn = {name: line_of(self._metrics, name, axis, smoothing, points) for name in names}
            return {name: line for name, line in drawn.items() if line is not None}

        return self._answers.get(("lines", axis, smoothing, points), find)

    def pass_rate_lines(self, axis: Axis) -> dict[str, Line]:
        """Held-out pass rates by set."""

        def find() -> dict[str, Line]:
            rates = pass_rates(self.path / "evaluations.jsonl")
            return {name: measured_line(self._metrics, one, axis) for name, one in rates.items()}

        return self._answers.get(("pass_rates", axis), find)

    def groups(self, query: GroupQuery) -> dict[str, Any]:
        """A page of sample groups."""

        def find() -> dict[str, Any]:
            with reading(self._ledger) as ledger:
                total, groups = ledger.groups(query)
            known = [one | {"result": self._groups.find(one["group_id"])} for one in groups]
            return {"total": total, "groups": known}

        return self._answers.get(("groups", query), find)

    def group(self, group_id: int) -> dict[str, Any] | None:
        """One sample group and those of its trajectories that are kept."""
        with reading(self._ledger) as ledger:
            group = ledger.group(group_id)
        if group is None:
            return None
        kept = self.trajectories(TrajectoryQuery(group=group_id, limit=MOST_SIBLINGS))
        result = self._answers.get(("result", group_id), lambda: self._groups.find(group_id))
        return group | {"result": result} | kept

    def timeline(self, since: float | None, until: float | None, bins: int) -> dict[str, Any]:
        """The work of every part of the system between two times, seconds since 1970."""
        question = ("timeline", since, until, bins)
        return self._answers.get(question, lambda: self._timeline.window(since, until, bins))

    def moment(self, lane: str, moment: float, slack: float) -> list[dict[str, Any]]:
        """The spans of a lane at a time."""
        question = ("moment", lane, moment, slack)
        return self._answers.get(question, lambda: self._timeline.at(lane, moment, slack))

    def pushes(self, limit: int) -> list[dict[str, Any]]:
        """The newest pushes of weights."""
        return self._answers.get(("pushes", limit), lambda: self._timeline.pushes(limit))

    def trajectories(self, query: TrajectoryQuery) -> dict[str, Any]:
        """A page of trajectories, their texts cut short."""

        def find() -> dict[str, Any]:
            trajectories = self._trajectories
            total, numbers = trajectories.find(query)
            rows = (trajectories.row(number) for number in numbers)
            return {"total": total, "trajectories": [row for row in rows if row is not None]}

        return self._answers.get(("trajectories", query), find)

    def trajectory(self, number: int) -> dict[str, Any] | None:
        """One trajectory, whole; `number` is its line."""

        def find() -> dict[str, Any] | None:
            trajectories = self._trajectories
            trajectories.look()
            return trajectories.read(number)

        line = self._answers.get(("trajectory", number), find)
        if line is None:
            return None
        # Tokens take longest, and no other question needs to wait for them.
        pieces = self._pieces.of(line["token_ids"]) if "token_ids" in line else None
        return {"number": number, "pieces": pieces} | line
