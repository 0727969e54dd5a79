"""One run directory, as the page reads it."""

import json
import sqlite3
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import yaml

from services.page.group_lines import GroupLines
from services.page.json_lines import JsonLines
from services.page.ledger_reading import GroupQuery, LedgerReading
from services.page.metric_table import MetricTable
from services.page.timeline_reading import TimelineReading
from services.page.token_pieces import TokenPieces
from services.page.trajectory_index import MOST_SIBLINGS, TrajectoryIndex, TrajectoryQuery
from services.protocol.errors import InvalidInput

_MARKS = ("config.yaml", "ledger.sqlite")
_MOST_EVALUATIONS = 2000
_LONGEST_ERROR = 20_000  # characters
_SHORT = 240  # characters of a prompt or an answer in a list


class RunFolder:
    """Answers the page's questions about one run; may be asked from several threads.

    Whatever a kill left half-written is read as far as it is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = LedgerReading(path / "ledger.sqlite")
        self._metrics = MetricTable(JsonLines(path / "metrics.jsonl"))
        self._evaluations = JsonLines(path / "evaluations.jsonl")
        self._tokens = TrajectoryIndex(JsonLines(path / "tokens.jsonl"))
        self._texts = TrajectoryIndex(JsonLines(path / "trajectories.jsonl"))
        self._groups = GroupLines(JsonLines(path / "groups.jsonl"))
        older, newer = (JsonLines(path / f"timeline{part}.jsonl") for part in (".1", ""))
        self._timeline = TimelineReading(older, newer)
        self._pieces = TokenPieces(path)
        self._turn = Lock()

    @classmethod
    def open(cls, path: str | Path, *, field: str = "RUN_DIR") -> "RunFolder":
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

    def revision(self) -> list[list[float]]:
        """Another value whenever a file of the run has changed."""
        found = []
        for name in ("metrics", "evaluations", "trajectories", "tokens", "groups", "timeline"):
            found.append(_mark(self.path / f"{name}.jsonl"))
        for name in ("ledger.sqlite", "ledger.sqlite-wal", "summary.json", "error.txt"):
            found.append(_mark(self.path / name))
        return found

    @property
    def _trajectories(self) -> TrajectoryIndex:
        """Those kept token by token; before the first train step, and of a run from before
        tokens were kept, those kept as text."""
        return self._tokens if self._tokens.look() else self._texts

    def overview(self) -> dict[str, Any]:
        """What the run is and where it stands."""
        config = self._config()
        summary = self._json("summary.json")
        with self._turn:
            last = self._metrics.last()
            trajectories = self._trajectories
            kept, verdicts = trajectories.look(), trajectories.verdicts
        error = self._text("error.txt")
        steps = int(last.get("step", 0))
        return {
            "run_id": self.run_id,
            "path": str(self.path),
            "config": config,
            "summary": summary,
            "error": error,
            "step": steps,
            "steps": config.get("steps"),
            "state": _state(steps, config.get("steps"), summary, error),
            "written_at": max(mark[1] for mark in self.revision()),
            "last": last,
            "trajectories": kept,
            "verdicts": verdicts,
            **self._account(),
        }

    def _account(self) -> dict[str, Any]:
        try:
            return {"flow": self.ledger.flow(), "facts": self.ledger.facts()}
        except sqlite3.Error as error:
            return {"flow": None, "facts": {}, "ledger_problem": str(error)}

    def curves(self, points: int) -> dict[str, Any]:
        """Train steps as columns, and every evaluation."""
        with self._turn:
            columns = self._metrics.columns(points)
            count = self._evaluations.look()
            first = max(0, count - _MOST_EVALUATIONS)
            lines = self._evaluations.typed(first, count, dict)
        return {"columns": columns, "evaluations": [line for line in lines if line is not None]}

    def groups(self, query: GroupQuery) -> dict[str, Any]:
        """A page of sample groups."""
        total, groups = self.ledger.groups(query)
        with self._turn:
            known = [group | {"result": self._groups.find(group["group_id"])} for group in groups]
        return {"total": total, "groups": known}

    def group(self, group_id: int) -> dict[str, Any] | None:
        """One sample group and those of its trajectories that are kept."""
        group = self.ledger.group(group_id)
        if group is None:
            return None
        kept = self.trajectories(TrajectoryQuery(group=group_id, limit=MOST_SIBLINGS))
        with self._turn:
            return group | {"result": self._groups.find(group_id)} | kept

    def timeline(self, since: float | None, until: float | None, bins: int) -> dict[str, Any]:
        """What every part of the system did between two times, seconds since 1970."""
        with self._turn:
            return self._timeline.window(since, until, bins)

    def moment(self, lane: str, moment: float, slack: float) -> list[dict[str, Any]]:
        """What a lane did at a time."""
        with self._turn:
            return self._timeline.at(lane, moment, slack)

    def pushes(self, limit: int) -> list[dict[str, Any]]:
        """The newest pushes of weights."""
        with self._turn:
            return self._timeline.pushes(limit)

    def trajectories(self, query: TrajectoryQuery) -> dict[str, Any]:
        """A page of trajectories, their texts cut short."""
        with self._turn:
            trajectories = self._trajectories
            total, numbers = trajectories.find(query)
            lines = [(number, trajectories.read(number)) for number in numbers]
        shown = [_short(number, line) for number, line in lines if line is not None]
        return {"total": total, "trajectories": shown}

    def trajectory(self, number: int) -> dict[str, Any] | None:
        """One trajectory, whole; `number` is its line."""
        with self._turn:
            trajectories = self._trajectories
            trajectories.look()
            line = trajectories.read(number)
            if line is None:
                return None
            pieces = self._pieces.of(line["token_ids"]) if "token_ids" in line else None
        return {"number": number, "pieces": pieces} | line

    def _config(self) -> dict[str, Any]:
        """What JSON has no word for, such as half of a surrogate pair, is not sent: {} then."""
        try:
            found = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
            found = msgspec.json.decode(json.dumps(found, default=str))
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
            return {}
        return found if isinstance(found, dict) else {}

    def _json(self, name: str) -> Any:
        try:
            return msgspec.json.decode((self.path / name).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    def _text(self, name: str) -> str:
        try:
            with (self.path / name).open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_ERROR)
        except OSError:
            return ""


def _mark(path: Path) -> list[float]:
    try:
        found = path.stat()
    except OSError:
        return [0, 0.0]
    return [found.st_size, found.st_mtime]


def _state(step: int, steps: Any, summary: Any, error: str) -> str:
    """As far as files can tell: `unfinished` is in progress, or was killed."""
    if error:
        return "failed"
    if summary is None:
        return "unfinished"
    return "finished" if isinstance(steps, int) and step >= steps else "ended"


def _short(number: int, line: dict[str, Any]) -> dict[str, Any]:
    messages = line.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    prompt = last.get("content") if isinstance(last, dict) else ""
    names = ("step", "group", "trajectory", "task_id", "reward", "advantage", "verdict", "tokens")
    return {
        "number": number,
        "prompt": str(prompt)[:_SHORT],
        "answer": str(line.get("answer", ""))[:_SHORT],
        "policy_versions": line.get("policy_versions", []),
        **{name: line.get(name) for name in names},
    }
