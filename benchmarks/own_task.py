"""From an empty folder to a learning curve on a task of one's own, timed.

    python -m benchmarks.own_task --json

Does what the first section of docs/your-own-tasks.md says: clones this repository, and fetches
every package anew. `--json` keeps the times and writes the table of that page.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import BASELINES, ROOT, machine, markdown, options_of, with_table, write
from millrace_tools.capacity.machine import free_port
from tests.operations.own_task import PAGE, own_task_steps
from tests.operations.shell_walk import walk_afresh

MOST_S = 1800.0
RECORD = BASELINES / "own_task.json"


def main() -> None:
    """Do it, print the times, and write them if asked."""
    options = options_of(__doc__, "own_task").parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-own-task-") as folder:
        record = machine() | measured(Path(folder))
        print(table(record), flush=True)  # to remove the folder takes a while
        if options.json:
            write(options.json, record)
            page = ROOT / PAGE
            page.write_text(with_table(page.read_text(), "own task", table(record)))


def measured(folder: Path) -> dict[str, Any]:
    """Each step with the user's and the machine's seconds, and the two ends of the curve."""
    steps = own_task_steps()
    here = {"REPOSITORY": str(ROOT), "make demo": f"make demo PORT={free_port()}"}
    done = walk_afresh(
        folder, [(one.name, _filled(one.text, here)) for one in steps], most_s=MOST_S
    )
    (summary,) = folder.glob("millrace/mine/runs/*/summary.json")
    curve = json.loads(summary.read_text())
    rows = [
        {
            "name": step.name,
            "commands": step.commands,
            "files": step.files,
            "user_s": round(step.user_s, 1),
            "machine_s": round(one.seconds, 1),
        }
        for step, one in zip(steps, done, strict=True)
    ]
    rates = {end: curve[f"heldout_pass_rate_{end}"] for end in ("before", "after")}
    return {"steps": rows, "heldout_pass_rate": rates}


def _filled(text: str, here: dict[str, str]) -> str:
    for written, typed in here.items():
        text = text.replace(written, typed)
    return text


def table(record: dict[str, Any]) -> str:
    """The page's table of times."""
    rows, total = [["since the start", "step", "your seconds", "the machine's"]], 0.0
    for one in record["steps"]:
        total += one["user_s"] + one["machine_s"]
        clock = f"{total // 60:.0f} min {total % 60:02.0f} s"
        rows.append([clock, one["name"], f"{one['user_s']:.0f}", f"{one['machine_s']:.0f}"])
    commands, files, user_s, machine_s = (
        sum(one[name] for one in record["steps"])
        for name in ("commands", "files", "user_s", "machine_s")
    )
    counts = f"in all: {commands} commands, {files} edited file"
    rows.append(["", counts, f"{user_s:.0f}", f"{machine_s:.0f}"])
    before, after = (record["heldout_pass_rate"][end] for end in ("before", "after"))
    curve = f"The held-out pass rate went from {before:.0%} to {after:.0%}"
    return f"{markdown(rows)}\n{curve}, on {record['cores']} cores.\n"


if __name__ == "__main__":
    main()
