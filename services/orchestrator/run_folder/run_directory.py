"""The files of a run."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Self

import yaml

from services.disk import replace_file
from services.ledger.ledger import LEDGER_FILE
from services.observability.log import JsonFormatter
from services.observability.metrics import RunMetrics
from services.orchestrator.run_folder.journal import Journal
from services.protocol.errors import InvalidInput
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import RunConfig, RunSummary
from services.protocol.run.profile import Profile, RankProfile

LOG_FILE = "log.jsonl"
_MOST_ANSWER_BYTES = 128 * 1024 * 1024
_MOST_BYTES = 32 * 1024 * 1024


class RunDirectory:
    """One folder per run.

    `config.yaml`, `ledger.sqlite`, `ledger.writer` (see `WriterLease`), `checkpoints/`,
    `origin/` (the checkpoints that a branch begins with), `profiles/` (traces of train steps),
    `metrics.jsonl` (one line per train step), `evaluations.jsonl` (one line per
    evaluation), `heldout_answers.jsonl` (the first answer to each held-out task at every
    evaluation), `pass_rates.jsonl` (one line per graded sample group: task and share that
    passed), `passed_over.jsonl` (position, source, and how many of its prompts a curriculum has
    passed over), `decisions.jsonl` (one line per decision of the schedule, for `millrace replay`),
    `trajectories.jsonl` (answers of the model for people to read), `groups.jsonl` and
    `tokens.jsonl` (see `GroupRecord`), `timeline.jsonl` (see `Timeline`), `usage.jsonl` (see
    `follow_usage`), `log.jsonl` (see `run_log`), `summary.json`, `learning_curve.png` and, if
    the run broke in an unexpected way, `error.txt`. The page adds `notes.jsonl`, the notes of
    people.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.ledger = self.path / LEDGER_FILE
        self.checkpoints = self.path / "checkpoints"
        self.origin = self.path / "origin"
        self.profiles = self.path / "profiles"
        self.pass_rates = self.path / "pass_rates.jsonl"
        self.passed_over = self.path / "passed_over.jsonl"
        self.decisions = self.path / "decisions.jsonl"
        self.groups = self.path / "groups.jsonl"
        self.tokens = self.path / "tokens.jsonl"
        self.timeline = self.path / "timeline.jsonl"
        self.usage = self.path / "usage.jsonl"
        self.error = self.path / "error.txt"
        self.learning_curve = self.path / "learning_curve.png"
        self._config = self.path / "config.yaml"
        self.metrics = Journal(self.path / "metrics.jsonl")
        self._evaluations = Journal(self.path / "evaluations.jsonl")
        self.heldout_answers = Journal(
            self.path / "heldout_answers.jsonl", max_bytes=_MOST_ANSWER_BYTES
        )
        self.trajectories = Journal(self.path / "trajectories.jsonl")
        self._summary = self.path / "summary.json"

    @classmethod
    def create(cls, config: RunConfig, run_id: str) -> Self:
        """Make the folder of a new run.

        Raises:
            InvalidInput: it cannot be written.
        """
        path = Path(config.run_root) / run_id
        try:
            directory = cls(path)
            directory.checkpoints.mkdir(parents=True)
            directory.write_config(config)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            fix = f"Choose a folder that can be written: {error.strerror}."
            raise InvalidInput("run_root", config.run_root, fix) from None
        return directory

    @property
    def written_at(self) -> float:
        """When its ledger was written last, seconds since 1970; 0 for never.

        A reader leaves an empty `-wal` beside it, which is no change.
        """
        files = (self.ledger, self.ledger.with_name(f"{LEDGER_FILE}-wal"))
        found = (one.stat() for one in files if one.exists())
        return max((one.st_mtime for one in found if one.st_size), default=0.0)

    def read_config(self) -> RunConfig:
        """The run as it is to be.

        Raises:
            InvalidInput: its file cannot be used.
        """
        return RunConfig.from_yaml(self._config)

    def write_config(self, config: RunConfig) -> None:
        """Write `config.yaml`, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        replace_file(self._config, text.encode())

    def new_profile(self, step: int) -> Path:
        """Make a folder for a profile from this train step on; a step may have several."""
        for number in count(1):
            folder = self.profiles / f"step-{step:08d}-{number}"
            if not folder.exists():
                break
        folder.mkdir(parents=True)
        return folder

    def profile(self, name: str) -> Profile | None:
        """A profile with the ranks that are done; None if there is none of that name."""
        folder = self.profiles / name
        if not name.startswith("step-") or folder.parent != self.profiles or not folder.is_dir():
            return None
        tables = [path.read_bytes() for path in sorted(folder.glob("rank*[0-9].json"))]
        ranks = tuple(RankProfile.model_validate_json(table) for table in tables)
        return Profile(name=name, folder=str(folder), ranks=ranks)

    def remove(self) -> None:
        """Remove the folder of a run that never began, as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)

    def truncate_metrics(self, step: int) -> bool:
        """Remove the lines of steps above `step`: their weights are gone; they are done again.

        Returns:
            Whether there was any.
        """
        files = (self.metrics, self._evaluations, self.heldout_answers)
        cut = [one.keep(lambda line: line["step"] <= step) for one in files]
        return any(cut)

    def append_evaluation(self, evaluation: Evaluation) -> None:
        """Add one evaluation."""
        self._evaluations.write(evaluation.model_dump(mode="json"))

    def evaluations(self) -> list[Evaluation]:
        """All evaluations so far, in the order in which they ended."""
        return [Evaluation.model_validate(line) for line in self._evaluations.lines()]

    def close(self) -> None:
        """No more lines come."""
        for journal in (self.metrics, self._evaluations, self.heldout_answers, self.trajectories):
            journal.close()

    def write_summary(self, summary: RunSummary) -> None:
        """Write `summary.json`, whole or not at all."""
        replace_file(self._summary, f"{summary.model_dump_json(indent=2)}\n".encode())

    def forget_ending(self) -> None:
        """Remove `summary.json` and `error.txt` of a run that goes on, as far as possible."""
        for file in (self._summary, self.error):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def write_error(self, trace: str) -> None:
        """Write `error.txt`."""
        # Half of a surrogate pair in a message cannot be written otherwise.
        self.error.write_text(trace, encoding="utf-8", errors="backslashreplace")

    def draw_learning_curve(self) -> None:
        """Draw mean reward and pass rates of held-out sets against train steps."""
        # matplotlib takes most of a second to import and only the end of a run needs it.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        steps = self.metrics.lines()
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        numbers = [line["step"] for line in steps]
        axes.plot(numbers, [line["reward"] for line in steps], label="mean reward of the batch")
        rates: dict[str, dict[int, float]] = {}
        for one in self.evaluations():
            if one.pass_rate is not None:
                rates.setdefault(one.name, {})[one.step] = one.pass_rate
        for name, by_step in rates.items():
            axes.plot(*zip(*sorted(by_step.items()), strict=True), "o--", label=f"pass@1, {name}")
        axes.set(xlabel="train step", ylabel="rate", title=self.path.name)
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        figure.savefig(self.learning_curve, dpi=120)


class _BoundedFile(RotatingFileHandler):
    """Counts the lines that could not be written."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        file = run_dir / LOG_FILE
        super().__init__(file, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._tags = {"run": run_id, "file": LOG_FILE, "cause": "disk"}

    def handleError(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        RunMetrics.dropped.inc(1, self._tags)


@contextmanager
def run_log(run_dir: Path, run_id: str) -> Iterator[None]:
    """While in this context, lines with `run` = `run_id` go to `log.jsonl` too.

    The file is bounded: full, it becomes `log.jsonl.1` and another begins. A disk that is
    full costs lines, never the run.
    """
    handler = _BoundedFile(run_dir, run_id)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: getattr(record, "fields", {}).get("run") == run_id)
    logger = logging.getLogger("millrace.orchestrator")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
