"""Whether every key of verl and TRL in migrating.md is in their releases that the page names.

Asks the package index for the two wheels and reads them, without installing them:

    python docs/check_migrating.py
"""

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml
from transformers import TrainingArguments

PAGE = Path(__file__).with_name("migrating.md").read_text(encoding="utf-8")
VERL_KEYS = "verl/trainer/config/_generated_ppo_trainer.yaml"
TRL_CLASSES = {
    "trl/trainer/grpo_config.py": "GRPOConfig",
    "trl/trainer/grpo_trainer.py": "GRPOTrainer",
    "trl/experimental/async_grpo/async_grpo_config.py": "AsyncGRPOConfig",
}


def main() -> int:
    """Print the keys that are not there; 1 if there are any."""
    verl, trl = (_wheel(name) for name in ("verl", "TRL"))
    known = yaml.safe_load(verl.read(VERL_KEYS))
    missing = [key for key in _verl_keys() if not _has(known, key)]
    fields = set(TrainingArguments.__dataclass_fields__)
    for path, name in TRL_CLASSES.items():
        fields |= _names(ast.parse(trl.read(path)), name)
    missing += [key for key in _left(PAGE.split("## From TRL")[1]) if key not in fields]
    sys.stdout.write("\n".join(missing or ["every key is there"]) + "\n")
    return bool(missing)


def _wheel(name: str) -> ZipFile:
    version = re.search(rf"{name} (\d[\d.]*\d)", PAGE)
    assert version, f"the page names no version of {name}"
    folder = Path(tempfile.mkdtemp())
    wanted = ["--no-deps", "--quiet", "-d", str(folder), f"{name.lower()}=={version[1]}"]
    subprocess.run([sys.executable, "-m", "pip", "download", *wanted], check=True)
    return ZipFile(next(folder.glob("*.whl")))


def _left(part: str) -> Iterator[str]:
    """The keys in the first column of a table's rows."""
    for line in part.splitlines():
        if line.startswith("| `") and " | Millrace | " not in line:
            yield from re.findall(r"`([\w.]+)", line.split(" | ")[0])


def _verl_keys() -> Iterator[str]:
    """Full keys: one without a dot stands beside the one before it."""
    path = ""
    for key in _left(PAGE.split("## From verl")[1].split("## From TRL")[0]):
        if "." in key:
            path = key.rpartition(".")[0]
        yield key if "." in key else f"{path}.{key}"


def _has(known: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(known, dict) or name not in known:
            return False
        known = known[name]
    return True


def _names(tree: ast.Module, wanted: str) -> set[str]:
    """Fields of a dataclass and arguments of its `__init__`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    found.add(part.target.id)
                elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    found.update(one.arg for one in part.args.args)
    return found


if __name__ == "__main__":
    sys.exit(main())
