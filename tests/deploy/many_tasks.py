"""A task file with as many tasks as any example's batch needs."""

import json
from pathlib import Path

from examples.gsm8k.prepare import STAND_IN, tasks


def many_tasks(folder: Path, name: str = "tasks.jsonl") -> Path:
    """Tasks of GSM8K's form, written into a folder."""
    rows = tasks(STAND_IN * 60, "train", None) + tasks(STAND_IN, "heldout", None)
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
