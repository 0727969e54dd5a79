"""Writes docs/hardware.md from the sizing that `millrace check --figures` uses.

`python docs/make_hardware.py`, after the sizing, its baseline or the list of
models has changed.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from millrace_tools.capacity.engine_memory import ENGINE_GIB
from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.sizing import Sizing
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.sizing.rank_memory import OVERHEAD_GIB
from services.trainer.sizing.shape import ModelShape

PAGE = Path(__file__).parent / "hardware.md"
BASELINE = PAGE.parents[1] / "benchmarks" / "baselines" / "rank_memory.json"
MODELS = (
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-32B",
)
MACHINES = (
    (1, 80, "of any size"),
    (2, 16, "RTX 4080, A4000"),
    (2, 24, "RTX 3090, 4090, L4, A10G"),
    (4, 24, "the same"),
    (8, 24, "the same"),
    (2, 48, "A6000, A40, L40S"),
    (4, 48, "the same"),
    (8, 48, "the same"),
    (2, 80, "A100, H100"),
    (4, 80, "the same"),
    (8, 80, "the same"),
    (2, 141, "H200"),
    (8, 141, "the same"),
)
"""GPUs of a node, GiB of each, and cards of that size."""

LORA = LoraConfig(rank=32, alpha=64, push="adapter")
MODEL_LEN = 8192
CACHED_TOKENS = 4 * MODEL_LEN
_ENGINE_SIZES = (1, 2, 4, 8)

HEAD = f"""# What fits on my hardware

After this page you know which models you can train on your GPUs, whole or with LoRA, and which
numbers to write into the deployment file.

**Its cells are estimates** by the formulas of `millrace check --figures`. Those of a rank are held
to a count of the tensors of real train steps, and to one GPU with a small model (below), those of
an engine to nothing but the memory of a version that it stages. Leave a margin, and begin with a
few steps.

You need at least two GPUs: ranks of the trainer and engines share none, so a `gpus_per_rank` of
0.5 beside an engine does not work, and `millrace check` refuses it. Without a GPU everything runs
on CPUs, for models of a few million parameters: `deploy/laptop.yaml`.

## How to read a cell

`4 + 2 x 2` means: 4 GPUs train, and 2 engines of 2 GPUs each sample. In the deployment file:

```yaml
- name: trainer
  args: {{world_size: 4, gpus_per_rank: 1, device: cuda}}
- name: rollout_server
  args: {{replicas: 2, tensor_parallel_size: 2, device: cuda}}
```

`4 + 4` are 4 GPUs that train and 4 engines of one GPU. `-` does not fit. A cell divides the GPUs
of one node as evenly as the model allows; which division is fastest depends on the length of your
answers ([schedules](schedules.md)).

All cells are for bfloat16, activation checkpointing, `micro_batch_tokens: {MODEL_LEN}`,
`max_model_len: {MODEL_LEN}`, `gpu_memory_utilization: 0.9`, and a KV cache of at least
{CACHED_TOKENS:,} tokens in each engine. LoRA has rank {LORA.rank} on all linear layers, and pushes
only the adapter.
"""
COUNTED = """## Sizing against measurement

Each row is one rank in its second train step of two full micro-batches, run with the trainer's own
model, FSDP2 and update under fake tensors and a fake process group (`python -m
benchmarks.rank_memory --json`): sizes are real, and nothing is computed. What CUDA, NCCL and
fragmentation take comes on top. Host memory is that of offloading here; the rest of it, the copies
for replicas and for a checkpoint, is measured on two real ranks, and so is the disk of a checkpoint
(`tests/trainer/test_host_memory.py`). Tests hold every figure within a tenth. No test measures the
3 GiB of host memory that a rank's process is counted with.

Two GPUs, an H200 and an H100, each measured one rank of a Qwen3 of 0.5 B parameters, in seven
settings of checkpointing, `offload`, `moments` and LoRA (`tests/gpu/test_sizing.py`, torch 2.11).
The sizing is 0.2 to 4.6 % above the most that tensors took, 9.1 to 16.6 GiB. CUDA's context took
1.3 GiB besides. Memory that the allocator reserved and no tensor used was 0.2 to 1.8 GiB with
`expandable_segments`, which ranks set (H100), and 0.9 to 3.7 GiB without (H200); 4 GiB are counted
for context and allocator together. Larger models, and NCCL between GPUs, have not run.

"""
TAIL = f"""## For your own file

```bash
millrace check deploy/cluster.yaml --figures --gpu-gib 24                      # each sum
millrace check deploy/cluster.yaml --nodes deploy/kuberay/rayservice.yaml   # and whether nodes do
```

Of a rank the sizing counts what it holds (weights, gradients and moments in float32, a KL reference
and a critic where the run has them) and the moment of a step that needs the most besides, with
{OVERHEAD_GIB:g} GiB for CUDA, NCCL and fragmentation; of an engine its weights, the KV cache, and
{ENGINE_GIB:g} GiB for activations and CUDA graphs; then host memory of ranks and engines, and the
disk of checkpoints. `--run` counts what the run asks for. With `--nodes` or `--cluster` the host
memory of a node's ranks (`ranks_per_node`) must fit, too; ranks compare it with their own node's
before they load anything.

A model that does not fit its ranks is refused, with the keys that would make it fit, cheapest
first. If an engine does not fit: a larger `tensor_parallel_size` or a smaller `max_model_len`.
[Deploying](deploying.md) lists the files that are ready for one, two, eight GPUs and more.

`python docs/make_hardware.py` makes this page.
"""


@dataclass(frozen=True, kw_only=True)
class Division:
    """GPUs of a node, divided between training and sampling.

    Attributes:
        ranks: GPUs that train.
        engines: number of rollout servers.
        engine_gpus: GPUs of each.
    """

    ranks: int
    engines: int
    engine_gpus: int

    def __str__(self) -> str:
        each = "" if self.engine_gpus == 1 else f" x {self.engine_gpus}"
        return f"{self.ranks} + {self.engines}{each}"


def division(shape: ModelShape, lora: LoraConfig | None, gpus: int, gib: int) -> Division | None:
    """The most even division that fits and leaves the fewest GPUs unused; None: nothing fits."""
    each = next((size for size in _ENGINE_SIZES if _engine_fits(shape, lora, size, gib)), None)
    if each is None:
        return None
    fitting = [
        Division(ranks=ranks, engines=(gpus - ranks) // each, engine_gpus=each)
        for ranks in range(1, gpus)
        if gpus - ranks >= each and _sizing(shape, lora, ranks, each, gib).rank_gib <= gib
    ]
    return min(
        fitting,
        key=lambda one: (gpus - one.ranks - one.engines * each, abs(2 * one.ranks - gpus)),
        default=None,
    )


def _engine_fits(shape: ModelShape, lora: LoraConfig | None, size: int, gib: int) -> bool:
    divisible = shape.heads % size == 0
    return divisible and _sizing(shape, lora, 1, size, gib).engine.kv_tokens >= CACHED_TOKENS


def _sizing(
    shape: ModelShape, lora: LoraConfig | None, ranks: int, engine_gpus: int, gib: int
) -> Sizing:
    trainer = TrainerConfig(
        model="-",
        world_size=ranks,
        device="cuda",
        dtype="bfloat16",
        gpus_per_rank=1,
        activation_checkpointing=True,
        micro_batch_tokens=MODEL_LEN,
        lora=lora,
    )
    rollout = RolloutServerConfig(
        model="-",
        device="cuda",
        dtype="bfloat16",
        tensor_parallel_size=engine_gpus,
        max_model_len=MODEL_LEN,
    )
    reward = RewardServiceConfig()
    return Sizing(shape=shape, trainer=trainer, rollout=rollout, reward=reward, gpu_gib=gib)


def page() -> str:
    """The text of the page."""
    whole = f"## The whole model\n\n{_table(None)}"
    adapter = f"## LoRA\n\n{_table(LORA)}"
    return "\n".join([HEAD, whole, adapter, COUNTED + _counted(), TAIL])


def _counted() -> str:
    cases = json.loads(BASELINE.read_text(encoding="utf-8"))["cases"]
    columns = ["model", "ranks", "tokens", "settings"]
    columns += ["held, GiB", "sizing", "most, GiB", "sizing", "host, GiB", "sizing"]
    lines = [" | ".join(columns), " | ".join(["---"] * len(columns))]
    for case in cases:
        settings = {**case["trainer"], **case["algorithm"]}
        told = ", ".join(f"`{_setting(*one)}`" for one in settings.items())
        figures = (
            f"{case[f'{name}_gib{by}']:.2f}"
            for name in ("held", "most", "host")
            for by in ("", "_by_sizing")
        )
        name = case["model"].partition("/")[2]
        lines.append(" | ".join([name, str(case["ranks"]), f"{case['tokens']:,}", told, *figures]))
    return "".join(f"| {line} |\n" for line in lines)


def _setting(key: str, value: object) -> str:
    if isinstance(value, dict):
        name, inner = next(iter(value.items()))
        return f"{key}.{name}: {inner}"
    return f"{key}: {str(value).lower() if isinstance(value, bool) else value}"


def _table(lora: LoraConfig | None) -> str:
    names = [model.partition("/")[2] for model in MODELS]
    lines = [" | ".join(["GPUs of a node", *names]), " | ".join(["---"] * (len(names) + 1))]
    for gpus, gib, cards in MACHINES:
        found = (division(KNOWN_SHAPES[model], lora, gpus, gib) for model in MODELS)
        cells = [str(one) if one else "-" for one in found]
        size = f"{gpus} x {gib} GiB" if gpus > 1 else "1 GPU"
        lines.append(" | ".join([f"{size} ({cards})", *cells]))
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
