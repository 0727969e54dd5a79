"""Writes docs/hardware.md from the sizing that `millrace check --figures` uses.

`python docs/make_hardware.py`, after the sizing, its baseline or the list of
models has changed.
"""

import json
from dataclasses import replace
from pathlib import Path

from millrace_tools.capacity.engine_memory import ENGINE_GIB
from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.shared_gpu import SLEEPING_GIB
from millrace_tools.sizes.choice import Division, Wish, chosen
from millrace_tools.sizes.hardware import Hardware
from services.protocol.placement import Placement
from services.protocol.run.orchestrator import RunConfig
from services.trainer.sizing.rank_memory import CONTEXT_GIB, OVERHEAD_GIB

PAGE = Path(__file__).parent / "hardware.md"
BASELINE = PAGE.parents[1] / "benchmarks" / "baselines" / "rank_memory.json"
MODELS = (
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-32B",
)
MACHINES = (
    (1, 16, "RTX 4080, A4000"),
    (1, 24, "RTX 3090, 4090, L4, A10G"),
    (1, 48, "A6000, A40, L40S"),
    (1, 80, "A100, H100"),
    (1, 141, "H200"),
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

ADAPTER_RANK = 32
LENGTHS = (7168, 8192)
"""Longest answer, and prompt and answer together, tokens."""

HEAD = f"""# What fits on my hardware

After this page you know which models you can train on your GPUs, whole or with LoRA, and which
numbers to write into the deployment file.

The page has a table for each way to use the GPUs. **Its cells are estimates** by the formulas of
`millrace check --figures`. Tests compare the memory of a rank with a count of the tensors of real
train steps, and two GPUs have measured it with a small model (below). Of an engine's memory they
compare only a version that it stages. Leave a margin, and begin with a few steps.

`millrace init` writes a deployment and a run file for your GPUs, or says what would fit:

```bash
millrace init --gpus 1 --gpu-gib 24 --model hf://Qwen/Qwen3-0.6B
millrace init --gpus 2 --gpu-gib 24 --model hf://Qwen/Qwen3-4B --lora 32 --cpus 16
```

One GPU is enough with `placement: shared`: ranks and engines use the same GPUs in turn. With
`placement: separate`, the default, they have GPUs of their own, at least two; a `gpus_per_rank` of
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

`4 + 4` are 4 GPUs that train and 4 engines of one GPU. Under "shared GPUs" `4 x 2` are 4 engines of
2 GPUs each, and 8 ranks on the same 8 GPUs in turn, `8` are 8 engines and 8 ranks. `-` does not
fit. `*` fits with `offload: optimizer`, which keeps AdamW's moments in host memory. A cell divides
the GPUs of one node as evenly as the model allows; which division is fastest depends on the length
of your answers ([schedules](schedules.md)).

Cells are those that `millrace init` chooses, for bfloat16, activation checkpointing, rows of at
most {LENGTHS[1]:,} tokens, a KV cache of six such rows in each engine, and a tenth of each GPU to
spare. LoRA has rank {ADAPTER_RANK} on all linear layers. `--offload all` fits more, slowly.
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
memory of a node's ranks must fit, too; ranks compare it with their own node's before they load
anything.

Of a shared GPU both turns are counted. While the engine samples: `gpu_memory_utilization` of it,
{CONTEXT_GIB:g} GiB of the rank's CUDA context, and what `trainer.kept_on_gpu` leaves there. While
the rank trains: all that a rank needs, {SLEEPING_GIB:g} GiB of the sleeping engine, of which 0.7
for CUDA graphs are not measured, and its weights with `rollout_server.kept_on_gpu: weights`.
`--figures` says for parameters, moments and weights why they stay or leave, and which
`kept_on_gpu` would fit.

A model that does not fit its ranks is refused, with the keys that would make it fit, cheapest
first. If an engine does not fit: a larger `tensor_parallel_size` or a smaller `max_model_len`.
[Deploying](deploying.md) lists the files that are ready for one, two, eight GPUs and more.

`python docs/make_hardware.py` makes this page.
"""


RUN = RunConfig.from_yaml(PAGE.parents[1] / "examples" / "gsm8k" / "run.yaml")


def cell(model: str, hardware: Hardware, placement: Placement, lora: int | None) -> str:
    """How a model fits; `-` where it does not."""
    wish = Wish(
        model=f"hf://{model}",
        shape=KNOWN_SHAPES[model],
        hardware=hardware,
        placement=placement,
        run=RUN,
        lengths=(LENGTHS,),
        lora=lora,
        offload="none",
    )
    for mark, one in (("", wish), ("*", replace(wish, offload="optimizer"))):
        if (found := chosen(one)) is not None:
            division = Division(
                ranks=found.trainer.world_size,
                engines=found.rollout.replicas,
                engine_gpus=found.rollout.tensor_parallel_size,
                shared=placement == "shared",
            )
            return f"{division}{mark}"
    return "-"


def page() -> str:
    """The text of the page."""
    kinds: list[tuple[str, Placement, int | None]] = [
        ("Shared GPUs, the whole model", "shared", None),
        ("Shared GPUs, LoRA", "shared", ADAPTER_RANK),
        ("Separate GPUs, the whole model", "separate", None),
        ("Separate GPUs, LoRA", "separate", ADAPTER_RANK),
    ]
    tables = [f"## {title}\n\n{_table(placement, lora)}" for title, placement, lora in kinds]
    return "\n".join([HEAD, *tables, COUNTED + _counted(), TAIL])


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


def _table(placement: Placement, lora: int | None) -> str:
    names = [model.partition("/")[2] for model in MODELS]
    lines = [" | ".join(["GPUs of a node", *names]), " | ".join(["---"] * (len(names) + 1))]
    for gpus, gib, cards in MACHINES:
        if placement == "separate" and gpus == 1:
            continue
        hardware = Hardware(gpus=gpus, gpu_gib=gib)
        cells = [cell(model, hardware, placement, lora) for model in MODELS]
        lines.append(" | ".join([f"{gpus} x {gib} GiB ({cards})", *cells]))
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
