"""Savings and costs of a LoRA adapter beside full weights, in one run on this machine.

    python -m benchmarks.lora

One rank trains a 29 M parameter model in float32: all of it, or an adapter. Then a vLLM
engine is brought to the next version, as whole weights or as an adapter, and answers. Each
way has a process of its own, so that memory is its own. Ratios are against full training.
"""

import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.models import make_model
from benchmarks.processes import next_message, start
from benchmarks.random_batch import Shape, random_batch, run_start
from benchmarks.report import options_of, show

RANK, ALPHA = 16, 32.0
VOCABULARY = 4096
SHAPE = Shape(groups=4, size=4, prompt=32, response=64)
ANSWERS, TOKENS = 8, 128
ROUNDS = 5
WAYS = ("full", "merged", "adapter")


def train(way: str, model: str) -> dict[str, float]:
    """One rank: bytes that travel, memory above the imports, seconds of a step and a snapshot."""
    from services.trainer.config import TrainerConfig
    from services.trainer.rank.learner import Learner
    from services.trainer.rank.process_group import join_group, open_store

    lora = None if way == "full" else {"rank": RANK, "alpha": ALPHA, "push": way}
    config = TrainerConfig.model_validate({"model": model, "world_size": 1, "lora": lora})
    join_group(config, 0, open_store("127.0.0.1"), "127.0.0.1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    learner = Learner(config)
    with tempfile.TemporaryDirectory() as folder:
        start = run_start(Path(folder), learning_rate=1e-3)
        learner.start_run(start, 0)
        batches = [
            random_batch(step, SHAPE, vocabulary=VOCABULARY, version=step - 1)
            for step in range(1, ROUNDS + 1)
        ]
        parts = [learner.model.plan(one, start).part(0) for one in batches]
        steps = [learner.train(one, one.step - 1, one.step) for one in parts]
        learner.save(ROUNDS)
        saved = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    sent = learner.snapshots.get(ROUNDS)
    assert sent is not None
    return {
        "wire_mb": sum(piece.numel() for bucket in sent.buckets for piece in bucket) / 1e6,
        "checkpoint_mb": saved / 1e6,
        "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3,
        "step_s": min(
            one.seconds["forward_backward"] + one.seconds["optimizer"] for one in steps[1:]
        ),
        "snapshot_s": min(one.seconds["snapshot"] for one in steps[1:]),
    }


async def engine(way: str, model: str) -> dict[str, float]:
    """Seconds that a commit stops generation, and tokens a second of several answers."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from tests.rollout_server.conftest import HOST, Sender
    from tests.rollout_server.served import serve, whole
    from tests.rollout_server.test_adapter import Adapted

    settings = {"lora_rank": RANK} if way == "adapter" else {}
    sender = Sender(TCPStore(HOST, 0, is_master=True, wait_for_workers=False), world_size=1)
    async with serve(Path(model), **settings) as served:
        adapted = Adapted(served) if way == "adapter" else None
        paused, rates = [], []
        for seed in range(ROUNDS):
            if adapted is not None:
                version = await adapted.stage(sender, seed)
            else:
                version = await served.stage(sender, seed=seed)
            paused.append(await served.loader.commit(version))
            began = time.perf_counter()
            await asyncio.gather(*(whole(served, TOKENS, f"{seed}/{i}") for i in range(ANSWERS)))
            rates.append(ANSWERS * TOKENS / (time.perf_counter() - began))
        sender.join()
    return {"commit_s": min(paused[1:]), "tokens_per_s": max(rates[1:])}


def main() -> None:
    """Measure every way, and print it beside full training."""
    parser = options_of(__doc__)
    names = ("PART", "WAY", "MODEL")
    parser.add_argument("--one", nargs=3, metavar=names, help="only this: `train` or `engine`")
    if one := parser.parse_args().one:
        part, way, model = one
        torch.set_num_threads(1)
        found = train(way, model) if part == "train" else asyncio.run(engine(way, model))
        print(json.dumps(found), flush=True)
        os._exit(0)  # nothing is left to write, and vLLM's libraries complain at length
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), (512, 1536, 8, 8, 4, 64), vocabulary=VOCABULARY, tied=True)
        figures: dict[str, dict[str, float]] = {way: {} for way in WAYS}
        for way in WAYS:
            for part in ("train", "engine"):
                process = start("lora", "--one", part, way, folder)
                figures[way] |= next_message(process)
                process.wait()
    show(
        ("figure", *WAYS),
        (
            [name, *(f"{of[name]:.3f} ({of[name] / full:.2f}x)" for of in figures.values())]
            for name, full in figures["full"].items()
        ),
    )


if __name__ == "__main__":
    main()
