"""Make the example's model and task file.

The model is warm-started on demonstrations of which seven in ten contain their operation's
systematic bug, so imitation alone learns to write bugs; only running the code tells which of
the two variants is right.

    python -m examples.tiny_code.make_model --seed 0

With `--untrained` the weights are random, and the demonstrations are a file beside the tasks: what
warm_up.yaml learns from.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from examples.tiny_code.tasks import SHARE_RIGHT, split_specs, task_row

FOLDER = Path(__file__).parent
TASK_FILE, DEMONSTRATIONS = FOLDER / "tasks.jsonl", FOLDER / "demonstrations.jsonl"
NUM_DEMONSTRATIONS = 6400
MODELS = FOLDER.parents[1] / "models"
RECIPE_FILE = "recipe.json"


def main() -> None:
    """Command line: makes the model, or reuses one of the same seed and code."""
    parser = argparse.ArgumentParser(prog="make_model", description="Make the example's model.")
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument("--out", type=Path, help="folder (default: models/tiny_code-seedN)")
    parser.add_argument("--untrained", action="store_true", help="weights as they are drawn")
    arguments = parser.parse_args()
    out = arguments.out or MODELS / f"tiny_code-seed{arguments.seed}"
    began = time.perf_counter()
    write_tasks(TASK_FILE)
    if arguments.untrained:
        write_demonstrations(DEMONSTRATIONS, arguments.seed)
    made = make_model(out, arguments.seed, trained=not arguments.untrained)
    verb = "made" if made else "reused"
    print(f"{verb} {os.path.relpath(out)} in {time.perf_counter() - began:.1f} s")


def write_tasks(path: Path) -> None:
    """Write the task file, whole or not at all."""
    train, heldout = split_specs()
    rows = [task_row(spec, "train") for spec in train]
    _write_rows(path, rows + [task_row(spec, "heldout") for spec in heldout])


def write_demonstrations(path: Path, seed: int) -> None:
    """Write demonstrations as given answers, with as many right ones as the model is shown."""
    choose, (train, _) = random.Random(seed), split_specs()
    rows = []
    for number in range(NUM_DEMONSTRATIONS):
        spec, right = choose.choice(train), choose.random() < SHARE_RIGHT
        row = {"task_id": f"demonstration-{number}", "split": "train"}
        prompt = [{"role": "user", "content": spec.prompt}]
        rows.append(row | {"messages": prompt, "answer": spec.answer(right=right)})
    _write_rows(path, rows)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    beside.replace(path)


def make_model(out: Path, seed: int, *, trained: bool = True) -> bool:
    """Write a Hugging Face checkpoint to `out`; False if it holds this very one already."""
    recipe = _recipe(seed) | ({} if trained else {"steps": 0})
    if (out / RECIPE_FILE).exists() and json.loads((out / RECIPE_FILE).read_text()) == recipe:
        return False
    # Importing torch and transformers takes seconds, which a second demo need not spend.
    from examples.tiny_code.warm_start import STEPS, make_checkpoint

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as beside:
        folder = Path(beside) / "model"
        make_checkpoint(str(folder), seed, STEPS if trained else 0)
        (folder / RECIPE_FILE).write_text(json.dumps(recipe))
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return True


def _recipe(seed: int) -> dict[str, object]:
    """What the result depends on."""
    digest = hashlib.sha256()
    for name in ("tasks.py", "tokenizer.py", "warm_start.py"):
        digest.update((FOLDER / name).read_bytes())
    versions = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    return {"seed": seed, "code": digest.hexdigest(), **versions}


if __name__ == "__main__":
    main()
