"""A run as its files have it: also without a cluster, and after the death of one."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from millrace_tools.run.step_log import Step
from services.json_lines import JsonLines
from services.ledger.ledger import LEDGER_FILE, ledger_of
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import LedgerCounts


@dataclass(frozen=True, kw_only=True)
class RunOnDisk:
    """What can be read of a run; names as in `RunStatus`.

    Attributes:
        state: `unfinished` may also be in progress in another cluster; `ended`: stopped or failed.
        written_at: when its ledger was written last, seconds since 1970.
    """

    run_id: str
    state: str
    run_dir: str
    step: int
    steps: int
    reward: float | None
    heldout_pass_rate: float | None
    elapsed_s: float
    ledger: LedgerCounts
    written_at: float

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read one run.

        Raises:
            InvalidInput: its configuration or its ledger cannot be read.
        """
        directory = RunDirectory(folder)
        steps = directory.read_config().steps
        with ledger_of(folder) as ledger:
            step, counts = ledger.last_step(), ledger.counts()
            elapsed_s = ledger.fact("elapsed_s", 0.0)
        last = _last_step(folder)
        ended = "finished" if step >= steps else "ended"
        return cls(
            run_id=folder.name,
            state=ended if (folder / "summary.json").exists() else "unfinished",
            run_dir=str(folder),
            step=step,
            steps=steps,
            reward=last.reward if last else None,
            heldout_pass_rate=last.heldout if last else None,
            elapsed_s=elapsed_s,
            ledger=counts,
            written_at=directory.written_at,
        )


def runs_on_disk(roots: Iterable[Path]) -> list[RunOnDisk]:
    """The runs in some folders, the one that was written last at the end; what cannot be read is
    left out."""
    found = {}
    for ledger in (ledger for root in roots for ledger in root.glob(f"*/{LEDGER_FILE}")):
        try:
            found[ledger.resolve()] = RunOnDisk.read(ledger.parent)
        except InvalidInput:
            continue
    return sorted(found.values(), key=lambda run: (run.written_at, run.run_id))


def _last_step(folder: Path) -> Step | None:
    lines = JsonLines(folder / "metrics.jsonl")
    count = lines.look()
    return lines.one(count - 1, Step) if count else None
