"""Writes the task file from the DeepCoder data set, or from a few rows of the same form."""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ASK = "Write a Python program that reads from standard input and prints the answer."
NAME = "agentica-org/DeepCoder-Preview-Dataset"
TRAIN, HELDOUT = ("primeintellect", "train"), ("lcbv5", "test")
TESTS = 20
STAND_IN = [
    {
        "problem": f"Read whole numbers from one line and print their sum times {factor}.",
        "tests": json.dumps(
            [
                {"type": "stdin_stdout", "input": "1 2 3\n", "output": f"{6 * factor}\n"},
                {"type": "stdin_stdout", "input": "40 2\n", "output": f"{42 * factor}\n"},
            ]
        ),
    }
    for factor in range(1, 7)
]
"""As the data set's rows are: a problem, and tests as JSON in a text."""


def stdin_tests(text: str) -> list[dict[str, str]]:
    """Tests of a row that run a program; none if they call a function.

    The sources of the data set have two forms: a list of objects with `input` and `output`, and
    an object with the lists `inputs` and `outputs`.
    """
    tests = json.loads(text)
    if isinstance(tests, dict):
        if tests.get("fn_name"):
            return []
        tests = [
            {"input": given, "output": said}
            for given, said in zip(tests["inputs"], tests["outputs"], strict=True)
        ]
    if any(test.get("type", test.get("testtype", "stdin")) == "functional" for test in tests):
        return []
    return [
        {"stdin": test["input"], "expected": test["output"]}
        for test in tests
        if isinstance(test["input"], str) and isinstance(test["output"], str)
    ]


def tasks(
    rows: Iterable[dict[str, Any]], split: str, limit: int | None
) -> Iterator[dict[str, Any]]:
    """Rows that have tests for a program, as tasks; of many tests the longest inputs."""
    written = 0
    for place, row in enumerate(rows):
        tests = sorted(stdin_tests(row["tests"]), key=lambda test: -len(test["stdin"]))[:TESTS]
        if not tests or (limit is not None and written >= limit):
            continue
        written += 1
        yield {
            "task_id": f"deepcoder-{split}-{place}",
            "split": split,
            "messages": [{"role": "user", "content": f"{row['problem']}\n\n{ASK}"}],
            "grader": {"kind": "python_stdio", "tests": tests, "limits": {"cpu_s": 6.0}},
        }


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

        train, test = (load_dataset(NAME, config, split=s) for config, s in (TRAIN, HELDOUT))
    count = 0
    with arguments.out.open("w", encoding="utf-8") as file:
        for rows, split in ((train, "train"), (test, "heldout")):
            for task in tasks(rows, split, arguments.limit):
                file.write(json.dumps(task) + "\n")
                count += 1
    print(f"wrote {count} tasks to {arguments.out}")


if __name__ == "__main__":
    main()
