"""The cases that are counted, and what the sizing says of each."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.rank_memory.rank import count
from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import TrainerConfig
from services.trainer.sizing.held import between_steps
from services.trainer.sizing.host import offloaded
from services.trainer.sizing.rank_memory import GIB, rank_bytes
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training

KL: Mapping[str, Any] = {"kl": {"coefficient": 0.01}}
PPO: Mapping[str, Any] = {"advantage": "gae", **KL}
LORA: Mapping[str, Any] = {"lora": {"rank": 32, "alpha": 64, "push": "adapter"}}
PLAIN: Mapping[str, Any] = {"activation_checkpointing": False}
AWAY: Mapping[str, Any] = {"offload": "all", "activation_offload": True}
AT_HOME: Mapping[str, Any] = {"offload": "all"}
WHOLE: Mapping[str, Any] = {"gradient_sync": "last_micro_batch"}
BALANCED: Mapping[str, Any] = {"router_aux_loss_coef": 0.001}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank's step.

    Attributes:
        model: of `KNOWN_SHAPES`.
        layers: in place of the model's, where one wants a smaller one.
        ranks: that train it.
        tokens: of a micro-batch.
        trainer: further settings of the trainer.
        algorithm: settings of the run's algorithm.
    """

    model: str
    ranks: int
    tokens: int
    trainer: Mapping[str, Any] = field(default_factory=dict)
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    layers: int | None = None

    @property
    def shape(self) -> ModelShape:
        """Of the model."""
        shape = KNOWN_SHAPES[self.model]
        return replace(shape, layers=self.layers or shape.layers)

    @property
    def training(self) -> Training:
        """What the sizing counts."""
        settings = {
            "model": self.model,
            "world_size": self.ranks,
            "device": "cuda",
            "dtype": "bfloat16",
            "activation_checkpointing": True,
            "micro_batch_tokens": self.tokens,
        }
        return Training(
            shape=self.shape,
            trainer=TrainerConfig.model_validate({**settings, **self.trainer}),
            algorithm=AlgorithmConfig.model_validate(dict(self.algorithm)),
        )


CASES = (
    Case(model="Qwen/Qwen3-8B", ranks=4, tokens=16384),
    Case(model="Qwen/Qwen3-8B", ranks=4, tokens=4096, trainer=PLAIN),
    Case(model="Qwen/Qwen3-8B", ranks=4, tokens=16384, algorithm=PPO),
    Case(model="Qwen/Qwen3-14B", ranks=8, tokens=4096),
    Case(model="Qwen/Qwen3-14B", ranks=8, tokens=32768),
    Case(model="Qwen/Qwen3-14B", ranks=8, tokens=16384, trainer=WHOLE),
    Case(model="Qwen/Qwen3-14B", ranks=8, tokens=16384, algorithm=KL),
    Case(model="Qwen/Qwen3-32B", ranks=4, tokens=16384, trainer=LORA),
    Case(model="Qwen/Qwen3-32B", ranks=16, tokens=16384),
    Case(model="Qwen/Qwen3-32B", ranks=64, tokens=16384, trainer={"model_copies": 4}),
    Case(model="Qwen/Qwen3-32B", ranks=8, tokens=16384, trainer={"offload": "optimizer"}),
    Case(model="Qwen/Qwen3-14B", ranks=4, tokens=32768, trainer=AWAY),
    Case(model="Qwen/Qwen3-14B", ranks=8, tokens=65536, trainer={"context_parallel": 4}),
    Case(model="Qwen/Qwen3-30B-A3B", ranks=8, tokens=4096),
    Case(model="Qwen/Qwen3-30B-A3B", ranks=8, tokens=16384, algorithm=BALANCED),
    Case(model="mistralai/Mixtral-8x7B-v0.1", ranks=16, tokens=16384),
    Case(model="meta-llama/Llama-3.1-70B", ranks=64, tokens=16384),
    Case(model="Qwen/Qwen2.5-72B", ranks=64, tokens=32768),
)

SMALL = tuple(
    replace(case, layers=3)
    for case in (
        Case(model="Qwen/Qwen3-4B", ranks=8, tokens=4096),
        Case(model="Qwen/Qwen3-4B", ranks=8, tokens=32768, trainer={"model_copies": 2}),
        Case(model="Qwen/Qwen3-4B", ranks=2, tokens=8192, trainer=PLAIN),
        Case(model="Qwen/Qwen3-14B", ranks=8, tokens=16384),
        Case(model="Qwen/Qwen3-14B", ranks=8, tokens=8192, trainer=WHOLE),
        Case(model="Qwen/Qwen3-14B", ranks=8, tokens=8192, algorithm=PPO),
        Case(model="Qwen/Qwen3-32B", ranks=4, tokens=16384, trainer=LORA),
        Case(model="Qwen/Qwen3-14B", ranks=8, tokens=8192, trainer={"offload": "optimizer"}),
        Case(model="Qwen/Qwen3-14B", ranks=8, tokens=32768, trainer=AWAY),
        Case(model="Qwen/Qwen3-14B", ranks=8, tokens=32768, trainer={"context_parallel": 4}),
        Case(model="Qwen/Qwen3-30B-A3B", ranks=8, tokens=2048),
        Case(model="Qwen/Qwen3-30B-A3B", ranks=8, tokens=16384, algorithm=BALANCED),
        Case(model="meta-llama/Llama-3.1-70B", ranks=64, tokens=16384),
        Case(model="Qwen/Qwen3-14B", ranks=2, tokens=8192, trainer={"moments": "8bit"}),
        Case(
            model="Qwen/Qwen3-14B", ranks=8, tokens=8192, trainer={"offload": "all"}, algorithm=PPO
        ),
        Case(model="mistralai/Mixtral-8x7B-v0.1", ranks=8, tokens=16384),
        Case(model="mistralai/Mixtral-8x7B-v0.1", ranks=64, tokens=4096),
    )
    if find_spec("torchao") or "moments" not in case.trainer
)
"""A few layers of each: they take seconds."""


def figures(case: Case) -> dict[str, Any]:
    """GiB of rank 0 as counted and by the sizing: held as a step begins, the most in it, and the
    most in host memory."""
    training = case.training
    with tempfile.TemporaryDirectory() as folder:
        counted = count(case.shape, training.trainer, training.algorithm, Path(folder))
    return {
        "model": case.model,
        "ranks": case.ranks,
        "tokens": case.tokens,
        "trainer": dict(case.trainer),
        "algorithm": dict(case.algorithm),
        "held_gib": round(counted.held / GIB, 2),
        "held_gib_by_sizing": round(between_steps(training) / GIB, 2),
        "most_gib": round(counted.step / GIB, 2),
        "most_gib_by_sizing": round(rank_bytes(training) / GIB, 2),
        "host_gib": round(counted.host / GIB, 2),
        "host_gib_by_sizing": round(offloaded(training) / GIB, 2),
    }
