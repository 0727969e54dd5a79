"""Make the example's model and task file.

The model is warm-started on demonstrations of which seven in ten contain their operation's
systematic bug, so imitation alone learns to write bugs; only running the code tells which of
the two variants is right.

    python -m examples.tiny_code.make_model --seed 0
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from examples.tiny_code.tasks import split_specs, task_row

FOLDER = Path(__file__).parent
TASK_FILE = FOLDER / "tasks.jsonl"
MODELS = FOLDER.parents[1] / "models"
RECIPE_FILE = "recipe.json"


def main() -> None:
    """Command line: makes the model, or reuses one of the same seed and code."""
    parser = argparse.ArgumentParser(prog="make_model", description="Make the example's model.")
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument("--out", type=Path, help="folder (default: models/tiny_code-seedN)")
    arguments = parser.parse_args()
    out = arguments.out or MODELS / f"tiny_code-seed{arguments.seed}"
    began = time.perf_counter()
    write_tasks(TASK_FILE)
    made = make_model(out, arguments.seed)
    verb = "made" if made else "reused"
    print(f"{verb} {os.path.relpath(out)} in {time.perf_counter() - began:.1f} s")


def write_tasks(path: Path) -> None:
    """Write the task file, whole or not at all."""
    train, heldout = split_specs()
    rows = [task_row(spec, "train") for spec in train]
    rows += [task_row(spec, "heldout") for spec in heldout]
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    beside.replace(path)


def make_model(out: Path, seed: int) -> bool:
    """Write a Hugging Face checkpoint to `out`; False if it holds this very one already."""
    recipe = _recipe(seed)
    if (out / RECIPE_FILE).exists() and json.loads((out / RECIPE_FILE).read_text()) == recipe:
        return False
    # Importing torch and transformers takes seconds, which a second demo need not spend.
    from examples.tiny_code.warm_start import make_checkpoint

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as beside:
        folder = Path(beside) / "model"
        make_checkpoint(str(folder), seed)
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
