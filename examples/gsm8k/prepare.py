"""Writes the task file from GSM8K, or from a few rows of the same form."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ASK = "Think step by step, and give the final answer in \\boxed{}."
STAND_IN = [
    {
        "question": f"Ann has {a} boxes with {b} pens each. She gives {c} pens away. How many "
        "pens has she left?",
        "answer": f"There are {a} * {b} = <<{a}*{b}={a * b}>>{a * b} pens.\n#### {a * b - c:,}",
    }
    for a, b, c in [(3, 4, 5), (12, 20, 7), (60, 30, 9), (2, 8, 1), (9, 9, 9), (5, 6, 10)]
]
"""As the data set's rows are: a question, and a solution that ends with the number."""


def tasks(rows: Iterable[dict[str, Any]], split: str, limit: int | None) -> list[dict[str, Any]]:
    """Rows as tasks with a maths grader; the number stands after the last `####`."""
    return [
        {
            "task_id": f"gsm8k-{split}-{place}",
            "split": split,
            "messages": [{"role": "user", "content": f"{row['question']}\n{ASK}"}],
            "grader": {"kind": "maths", "expected": row["answer"].rpartition("####")[2].strip()},
        }
        for place, row in enumerate(rows)
        if limit is None or place < limit
    ]


def main() -> None:
    """Write `tasks.jsonl` beside this file, or where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("tasks.jsonl"))
    parser.add_argument("--limit", type=int, help="tasks of each split, all if left out")
    parser.add_argument("--stand-in", action="store_true", help="six rows, and no network")
    arguments = parser.parse_args()
    if arguments.stand_in:
        train, test = STAND_IN[:4], STAND_IN[4:]
    else:
        from datasets import load_dataset  # `pip install 'millrace[data]'`

        train, test = (load_dataset("openai/gsm8k", "main", split=s) for s in ("train", "test"))
    written = tasks(train, "train", arguments.limit) + tasks(test, "heldout", arguments.limit)
    arguments.out.write_text("".join(json.dumps(task) + "\n" for task in written))
    print(f"wrote {len(written)} tasks to {arguments.out}")


if __name__ == "__main__":
    main()
