"""The pairs of deploy/sizes: what each is for, and its text."""

from dataclasses import dataclass
from pathlib import Path

from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.sizes.choice import LENGTHS, Example, Wish, chosen
from millrace_tools.sizes.hardware import Hardware
from millrace_tools.sizes.pair import Pair
from services.protocol.model_source import name_or_path
from services.protocol.placement import Placement
from services.protocol.run.orchestrator import RunConfig


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A pair of deploy/sizes whose settings are those that `millrace init` chooses.

    Attributes:
        model: on the hub.
        hardware: a node.
        example: whose run file goes with it.
        lora: rank of an adapter; None: the whole model.
        note: end of the title.
    """

    model: str
    hardware: Hardware
    placement: Placement
    example: Example
    lora: int | None = None
    note: str = ""


_SMALL, _LARGE = Hardware(gpus=1, gpu_gib=24, cpus=16), Hardware(gpus=1, gpu_gib=80, cpus=16)
_TWO, _EIGHT = (
    Hardware(gpus=2, gpu_gib=24, cpus=32),
    Hardware(gpus=8, gpu_gib=80, cpus=128, tier="A"),
)
_FEW_CORES = Hardware(gpus=8, gpu_gib=80, cpus=32)


def _shipped(
    model: str,
    hardware: Hardware,
    example: Example,
    *,
    placement: Placement = "shared",
    lora: int | None = None,
    note: str = "",
) -> Shipped:
    return Shipped(
        model=f"hf://Qwen/{model}",
        hardware=hardware,
        placement=placement,
        example=example,
        lora=lora,
        note=note,
    )


SHIPPED = {
    "1-gpu-24-gib-0.6b": _shipped("Qwen3-0.6B", _SMALL, "gsm8k"),
    "1-gpu-24-gib-4b-lora": _shipped("Qwen3-4B", _SMALL, "gsm8k", lora=32),
    "1-gpu-80-gib-4b": _shipped("Qwen3-4B", _LARGE, "gsm8k"),
    "1-gpu-80-gib-8b-lora": _shipped("Qwen3-8B", _LARGE, "deepcoder", lora=32),
    "2-gpus-24-gib-1.7b": _shipped("Qwen3-1.7B", _TWO, "gsm8k", placement="separate"),
    "2-gpus-24-gib-1.7b-shared": _shipped("Qwen3-1.7B", _TWO, "gsm8k"),
    "8-gpus-8b-deepcoder": _shipped("Qwen3-8B", _EIGHT, "deepcoder", placement="separate"),
    "8-gpus-8b-deepcoder-shared": _shipped("Qwen3-8B", _EIGHT, "deepcoder"),
    "8-gpus-32b-shared": _shipped("Qwen3-32B", _EIGHT, "gsm8k"),
    "8-gpus-8b-32-cores": _shipped(
        "Qwen3-8B", _FEW_CORES, "gsm8k", placement="separate", note=", with 32 CPU cores"
    ),
}
"""By the beginning of the file names."""


def shipped_pair(name: str, root: Path) -> dict[str, str]:
    """The texts of a pair, by file name.

    Args:
        name: of the pair.
        root: folder of `deploy` and `examples`.
    """
    shipped = SHIPPED[name]
    run_file = root / "examples" / shipped.example / "run.yaml"
    wish = Wish(
        model=shipped.model,
        shape=KNOWN_SHAPES[name_or_path(shipped.model)],
        hardware=shipped.hardware,
        placement=shipped.placement,
        run=RunConfig.from_yaml(run_file),
        lengths=LENGTHS[shipped.example],
        lora=shipped.lora,
    )
    sizing = chosen(wish)
    assert sizing is not None, f"{name} does not fit"
    files = f"{name}.yaml", f"{name}.run.yaml"
    pair = Pair(
        title=f"{wish}{shipped.note}.",
        name=f"deploy/sizes/{files[0]}",
        run_name=f"deploy/sizes/{files[1]}",
        tasks=f"../../examples/{shipped.example}/tasks.jsonl",
        run_root="../../runs",
        prepare=f"python -m examples.{shipped.example}.prepare",
        made_by="deploy/make_sizes.py",
    )
    deployment = pair.deployment(root / "deploy" / "cluster.yaml", wish, sizing)
    return dict(zip(files, (deployment, pair.run(run_file, wish, sizing)), strict=True))
