"""Writes the task file: sums, differences and products, some of them never trained on."""

import json
import random
from pathlib import Path

TRAIN, HELDOUT = 2000, 100
_SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def tasks(seed: int = 0) -> list[dict[str, object]]:
    """All tasks; the same seed gives the same ones, and no two ask the same."""
    chance = random.Random(seed)
    problems: dict[str, int] = {}
    while len(problems) < TRAIN + HELDOUT:
        left, right, sign = chance.randint(2, 99), chance.randint(2, 99), chance.choice("+-*")
        problems[f"{left} {sign} {right}"] = _SIGNS[sign](left, right)
    return [
        {
            "task_id": problem,
            "split": "heldout" if place < HELDOUT else "train",
            "messages": [{"role": "user", "content": f"What is {problem}?"}],
            "data": {"answer": answer},
        }
        for place, (problem, answer) in enumerate(problems.items())
    ]


if __name__ == "__main__":
    file = Path(__file__).with_name("tasks.jsonl")
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks()), encoding="utf-8")
    print(f"wrote {file}")
