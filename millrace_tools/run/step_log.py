"""The train steps of a run as its `metrics.jsonl` has them, each given out once.

The run's status has only the newest step, and several steps may end between two requests for it.
The file has every step, if this machine can read it.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.json_lines import JsonLines
from services.protocol.run.orchestrator import RunState, RunStatus

_NAMES = {"number": "step", "heldout": "heldout_pass_rate", "staleness": "staleness_max"}


class Step(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """One train step, as a line of `metrics.jsonl` has it.

    Attributes:
        heldout: held-out pass rate measured after it, None if it was not.
        seconds: wall time by use: waiting for a batch, training, saving.
        ledger: sample groups of the run so far, by ending.
        elapsed_s: wall time of the run at its end, seconds; grows from line to line, also
            when a step is done again after a recovery.
    """

    number: int
    reward: float
    heldout: float | None
    policy_version: int | None
    staleness: float | None
    elapsed_s: float
    seconds: Mapping[str, float] = {}
    ledger: Mapping[str, int] = {}


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
        return [
            Step(
                number=status.step,
                reward=status.reward,
                heldout=status.heldout_pass_rate,
                policy_version=status.policy_version,
                staleness=status.staleness,
                elapsed_s=status.elapsed_s,
                ledger=status.ledger.model_dump(),
            )
        ]

    def _appended(self) -> list[Step]:
        # After steps that are done again were cut off, it is another file.
        lines = self._lines.follow(Step)
        steps = [step for _, step in lines if step.elapsed_s > self._seen_s]
        self._seen_s = max([self._seen_s, *(step.elapsed_s for step in steps)])
        return steps
