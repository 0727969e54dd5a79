"""A run as its files have it: also without a cluster, and after the death of one."""

from collections.abc import Iterable, Iterator
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

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read one run.

        Raises:
            InvalidInput: its configuration or its ledger cannot be read.
        """
        steps = RunDirectory(folder).read_config().steps
        with ledger_of(folder) as ledger:
            step, counts = ledger.last_step(), ledger.counts()
            elapsed_s = ledger.fact("elapsed_s", 0.0)
        lines = JsonLines(folder / "metrics.jsonl")
        count = lines.look()
        last = lines.one(count - 1, Step) if count else None
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
        )


def runs_below(roots: Iterable[Path]) -> list[Path]:
    """The folders of runs in some folders; the one that was written last is at the end."""
    ledgers = (ledger for root in roots for ledger in root.glob(f"*/{LEDGER_FILE}"))
    folders = {ledger.parent.resolve() for ledger in ledgers}
    return sorted(folders, key=lambda folder: (RunDirectory(folder).written_at, folder.name))


def readable(folders: Iterable[Path]) -> Iterator[RunOnDisk]:
    """The runs in these folders, without those that cannot be read, as of another version."""
    for folder in folders:
        try:
            yield RunOnDisk.read(folder)
        except InvalidInput:
            continue
