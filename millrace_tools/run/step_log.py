"""The train steps of a run as its `metrics.jsonl` has them, each given out once.

The run's status shows only the newest step, and steps can be shorter than the time between
two looks at it. The file has every step, where it can be read from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from services.json_lines import JsonLines
from services.protocol.run.orchestrator import RunState, RunStatus


@dataclass(frozen=True, kw_only=True)
class Step:
    """One train step.

    Attributes:
        heldout: held-out pass rate measured after it, None if it was not.
        seconds: what its wall time went to: waiting for a batch, training, saving.
        elapsed_s: wall time of the run at its end, seconds; grows from line to line, also
            when a step is done again after a recovery.
    """

    number: int
    reward: float
    heldout: float | None
    policy_version: int | None
    staleness: float | None
    seconds: Mapping[str, float]
    elapsed_s: float

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Self:
        """A line of `metrics.jsonl`."""
        return cls(
            number=line["step"],
            reward=line["reward"],
            heldout=line["heldout_pass_rate"],
            policy_version=line["policy_version"],
            staleness=line["staleness_max"],
            seconds=line.get("seconds", {}),
            elapsed_s=line["elapsed_s"],
        )


class StepLog:
    """Gives out the steps that a run does from now on."""

    def __init__(self, run_dir: str) -> None:
        self._path = Path(run_dir) / "metrics.jsonl"
        self._lines = JsonLines(self._path)
        self._seen_s = -1.0
        self._shown = 0
        self._appended()  # what a resumed run did before

    def new(self, status: RunStatus) -> list[Step]:
        """Steps since the last call: from the file or, without it, what `status` shows."""
        if self._path.exists():
            return self._appended()
        up_to_date = status.state in (RunState.TRAINING, RunState.FINISHED)
        if not up_to_date or status.reward is None or status.step <= self._shown:
            return []
        self._shown = status.step
        return [_newest(status, status.reward)]

    def _appended(self) -> list[Step]:
        # After steps that are done again were cut off, it is another file.
        lines = (Step.from_line(line) for _, line in self._lines.follow(dict))
        steps = [step for step in lines if step.elapsed_s > self._seen_s]
        self._seen_s = max([self._seen_s, *(step.elapsed_s for step in steps)])
        return steps


def _newest(status: RunStatus, reward: float) -> Step:
    return Step(
        number=status.step,
        reward=reward,
        heldout=status.heldout_pass_rate,
        policy_version=status.policy_version,
        staleness=status.staleness,
        seconds={},
        elapsed_s=status.elapsed_s,
    )
