"""The sizing of a rank's host memory and disk beside what real ranks take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from services.trainer.config import TrainerConfig
from services.trainer.rank import rank
from services.trainer.sizing import host
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training

TOLERANCE = 0.1
MODEL = Qwen3Config(
    vocab_size=4096,
    hidden_size=640,
    intermediate_size=1920,
    num_hidden_layers=12,
    num_attention_heads=10,
    num_key_value_heads=5,
    head_dim=64,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 62 M parameters: its state is large beside what a process takes by chance."""
    folder = tmp_path_factory.mktemp("model")
    Qwen3ForCausalLM(MODEL).save_pretrained(folder)
    return folder


def training(config: TrainerConfig) -> Training:
    return Training(shape=ModelShape.of(MODEL.to_dict()), trainer=config)


def test_copies_for_replicas_take_what_the_sizing_says(rank_groups, model, make_start) -> None:
    ranks, settings = rank_groups[2], {"dtype": "bfloat16", "canary_sequences": 0}
    ranks.load(model, **settings)
    calls = [("start_run", (make_start(), 1)), *(("snapshot", (one,)) for one in (2, 3, 4))]
    expected = host.snapshots(training(ranks.config(model, **settings)))
    assert ranks.call("peak_of", *calls) == pytest.approx([expected] * 2, rel=TOLERANCE)


@pytest.mark.slow
def test_a_checkpoint_takes_the_memory_and_the_disk_that_the_sizing_says(
    rank_groups, model, make_start, make_batch
) -> None:
    ranks, start = rank_groups[2], make_start()
    ranks.load(model)
    ranks.call("start_run", start, 0)
    ranks.call("train", make_batch(1), 0, 1)
    counted = training(ranks.config(model))
    # Written later: digests read the file through a mapping, whose pages the kernel can drop.
    ranks.call("hold_checkpoints")
    peaks = ranks.call("peak_of", ("save", (1, None, False)))
    ranks.call("let_checkpoints_go")
    ranks.call("save", 1)
    assert peaks == pytest.approx([host.checkpoint(counted)] * 2, rel=TOLERANCE)
    files = Path(start.checkpoint_dir).rglob("*")
    written = sum(file.stat().st_size for file in files if file.is_file())
    kept_and_new = counted.trainer.checkpoints_kept + 1
    assert kept_and_new * written == pytest.approx(host.checkpoint_disk(counted), rel=TOLERANCE)


def test_ranks_set_torchs_allocators_unless_the_user_does(monkeypatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:native")
    rank._set_allocators(pins=True)
    assert os.environ["PYTORCH_ALLOC_CONF"] == "backend:native"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    rank._set_allocators(pins=False)
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    rank._set_allocators(pins=True)
    # Torch says so only where the setting contradicts another one.
    settings = f"pinned_max_cached_size_mb:0,{os.environ['PYTORCH_ALLOC_CONF']}"
    code = f"import torch; torch._C._accelerator_setAllocatorSettings('{settings}')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pinned_max_round_threshold_mb (1) > pinned_max_cached_size_mb (0)" in told.stderr
