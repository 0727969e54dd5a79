"""`millrace audit --train-steps`: a small model is trained on a private cluster."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.tiny_code.make_model import write_tasks
from services.page.reading.run_folder import RunFolder
from tests.audit.test_audit import audit_of

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_small_model_is_trained_with_three_seeds(tmp_path: Path) -> None:
    model = tmp_path / "model"
    command = [sys.executable, "-m", "examples.tiny_code.make_model", "--out", str(model)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=600)
    shutil.copy(ROOT / "examples" / "tiny_code" / "run.yaml", tmp_path)
    write_tasks(tmp_path / "tasks.jsonl")
    status, found, said = audit_of(
        tmp_path, only="learnable.training", train_steps=9, train_model=model
    )
    assert status == 0, said
    training = found["learnable.training"]
    assert training["verdict"] in ("pass", "warn"), said
    assert training["evidence"].count("in 9 steps") == 3
    assert "<svg" in (tmp_path / "audit" / "training.html").read_text()
    runs = [RunFolder.open(one, "RUN").files for one in (tmp_path / "audit" / "runs").iterdir()]
    assert sorted(one.config()["seed"] for one in runs) == [0, 1, 2]
