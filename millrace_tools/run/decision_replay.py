"""Whether a run's recorded decisions come out the same when they are taken again."""

from rich.console import Console

from services.orchestrator.core.replay import replay
from services.orchestrator.run_folder.run_directory import RunDirectory


def show_replay(run_dir: str, console: Console) -> bool:
    """Print what was decided again; returns whether all of it came out the same.

    Raises:
        InvalidInput: the directory has no decisions that can be read.
    """
    played = replay(RunDirectory(run_dir).decisions)
    lives = played.decisions.pop("begin", 0)
    counts = ", ".join(f"{count} {name}" for name, count in played.decisions.most_common())
    lines = [f"{played.decisions.total()} decisions of {lives} starts: {counts}"]
    if played.full:
        lines.append("The record is full: what came later was not written down.")
    lines.append(
        "All come out the same."
        if played.difference is None
        else f"They differ from here on, {played.difference}"
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return played.difference is None
