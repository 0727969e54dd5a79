"""Writes deploy/sizes, and the figures in the comments of all deployment files for GPUs.

`python deploy/make_sizes.py`, after the sizing or one of the cluster files has changed. Each file
of deploy/sizes is a cluster file with other values; those with a run file have the values that
`millrace init` chooses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.sizing import Sizing, relays_of
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.sizes.pair import (
    ENGINE,
    MICRO_BATCH,
    ROLLOUT,
    SLOT_CPUS,
    SLOTS,
    TRAINER,
    adapter_line,
)
from millrace_tools.sizes.shipped import SHIPPED, shipped_pair
from millrace_tools.sizes.text import RUN_LINE, replaced, with_figures, with_model
from services.protocol.model_source import name_or_path
from services.protocol.run.orchestrator import RunConfig
from services.trainer.config import LoraConfig

DEPLOY = Path(__file__).parent
GPU_GIB = 80.0
CLUSTERS = ("cluster.yaml", "cluster-4-nodes.yaml", "cluster-32-nodes.yaml")


@dataclass(frozen=True, kw_only=True)
class Size:
    """A file of deploy/sizes.

    Attributes:
        base: the file that it is made from.
        title: its first line.
        model: on the hub.
        run: the run file of its figures.
        lines: lines of the base and what stands in their place, a line each or several.
    """

    base: str
    title: str
    model: str
    run: str
    lines: Mapping[str, str]


def _served(model: str) -> str:
    return model.partition("/")[2].lower()


_FOUR_RANKS = "    world_size: 8\n    ranks_per_node: 8\n"
_FOUR_ENGINES = "    replicas: 12\n"
_TWELVE = "    tensor_parallel_size: 2\n"
_HALF = "    micro_batch_tokens: 16384\n"
_FEW_SLOTS = {SLOTS: "    slots: 16\n", SLOT_CPUS: "    num_cpus: 16\n"}
_GSM8K, _DEEPCODER = "examples/gsm8k/run.yaml", "examples/deepcoder/run.yaml"
_ADAPTER = adapter_line(LoraConfig(rank=32, alpha=64, push="adapter"))
_ADAPTER_RANK = "    lora_rank: 32\n"


def _shared_by(ranks: int) -> str:
    """A micro-batch that so many ranks share."""
    return f"{MICRO_BATCH}    context_parallel: {ranks}\n"


SIZES = {
    "2-gpus-8b-lora.yaml": Size(
        base="cluster.yaml",
        title="Two GPUs of 80 GiB: Qwen3-8B with an adapter.",
        model="Qwen/Qwen3-8B",
        run=_GSM8K,
        lines={
            TRAINER: "    world_size: 1\n    ranks_per_node: 1\n" + _ADAPTER,
            MICRO_BATCH: _HALF,
            ROLLOUT: "    served_model_name: qwen3-8b\n    replicas: 1\n" + _ADAPTER_RANK,
            **_FEW_SLOTS,
        },
    ),
    "2-gpus-8b.yaml": Size(
        base="cluster.yaml",
        title="Two GPUs of 80 GiB: Qwen3-8B, whose state waits in host memory.",
        model="Qwen/Qwen3-8B",
        run=_GSM8K,
        lines={
            # Sums stay on the GPU: the CPU would add up 30 GiB in each of 256 micro-batches.
            TRAINER: "    world_size: 1\n    ranks_per_node: 1\n    offload: all\n"
            "    gradient_sync: last_micro_batch\n",
            MICRO_BATCH: _HALF,
            ROLLOUT: "    served_model_name: qwen3-8b\n    replicas: 1\n",
            **_FEW_SLOTS,
        },
    ),
    "8-gpus-8b.yaml": Size(
        base="cluster.yaml",
        title="One node of eight GPUs, 80 GiB each: Qwen3-8B.",
        model="Qwen/Qwen3-8B",
        run=_GSM8K,
        lines={
            MICRO_BATCH: _HALF,
            ROLLOUT: "    served_model_name: qwen3-8b\n    replicas: 4\n",
        },
    ),
    "8-gpus-14b.yaml": Size(
        base="cluster.yaml",
        title="One node of eight GPUs, 80 GiB each: Qwen3-14B.",
        model="Qwen/Qwen3-14B",
        run=_GSM8K,
        lines={
            TRAINER: "    world_size: 6\n    ranks_per_node: 6\n",
            MICRO_BATCH: _shared_by(2),
            ROLLOUT: "    served_model_name: qwen3-14b\n    replicas: 1\n",
            ENGINE: "    tensor_parallel_size: 2\n",
        },
    ),
    "8-gpus-32b-lora.yaml": Size(
        base="cluster.yaml",
        title="One node of eight GPUs, 80 GiB each: Qwen3-32B with an adapter.",
        model="Qwen/Qwen3-32B",
        run=_GSM8K,
        lines={
            TRAINER: TRAINER + _ADAPTER,
            MICRO_BATCH: _HALF,
            ROLLOUT: "    served_model_name: qwen3-32b\n    replicas: 2\n" + _ADAPTER_RANK,
            ENGINE: "    tensor_parallel_size: 2\n",
        },
    ),
    "2-nodes-30b-a3b.yaml": Size(
        base="cluster-4-nodes.yaml",
        title="Two nodes of eight GPUs, 80 GiB each: Qwen3-30B-A3B, a mixture of experts.",
        model="Qwen/Qwen3-30B-A3B",
        run=_DEEPCODER,
        lines={
            MICRO_BATCH: _shared_by(4),
            "    served_model_name: qwen3-14b\n": "    served_model_name: qwen3-30b-a3b\n",
            _FOUR_ENGINES: "    replicas: 4\n",
        },
    ),
    "4-nodes-32b.yaml": Size(
        base="cluster-4-nodes.yaml",
        title="Four nodes of eight GPUs, 80 GiB each: Qwen3-32B.",
        model="Qwen/Qwen3-32B",
        run=_DEEPCODER,
        lines={
            _FOUR_RANKS: "    world_size: 16\n    ranks_per_node: 8\n",
            MICRO_BATCH: _shared_by(2),
            "    served_model_name: qwen3-14b\n": "    served_model_name: qwen3-32b\n",
            _FOUR_ENGINES: "    replicas: 4\n",
            _TWELVE: "    tensor_parallel_size: 4\n",
        },
    ),
    "16-nodes-72b.yaml": Size(
        base="cluster-4-nodes.yaml",
        title="Sixteen nodes of eight GPUs, 80 GiB each: Qwen2.5-72B.",
        model="Qwen/Qwen2.5-72B",
        run=_DEEPCODER,
        lines={
            _FOUR_RANKS: "    world_size: 64\n    ranks_per_node: 8\n",
            MICRO_BATCH: _shared_by(2),
            "    served_model_name: qwen3-14b\n": "    served_model_name: qwen2.5-72b\n",
            _FOUR_ENGINES: "    replicas: 16\n",
            _TWELVE: "    tensor_parallel_size: 4\n",
        },
    ),
}
"""By file name; each fits its GPUs with a tenth to spare."""


def sizing(file: Path, text: str) -> Sizing:
    """Of a deployment file with this text, and the run that its comment names.

    Raises:
        InvalidInput: it cannot be deployed.
    """
    found = RUN_LINE.search(text)
    assert found is not None, f"{file} names no run file"
    gib = re.search(r"--gpu-gib (\d+)", text[: found.start()])
    changes = dict(re.findall(r"`(model|batch_groups): (\S+)`", found.group(0)))
    values = {key: yaml.safe_load(value) for key, value in changes.items()}
    run = RunConfig.from_yaml(DEPLOY.parent / found.group(2)).model_copy(update=values)
    configs: Mapping[str, Any] = Deployment.check(yaml.safe_load(text), source=str(file)).configs
    assert run.model == configs["rollout_server"].served_model_name
    return Sizing(
        shape=KNOWN_SHAPES[name_or_path(configs["trainer"].model)],
        trainer=configs["trainer"],
        rollout=configs["rollout_server"],
        reward=configs["reward_service"],
        gpu_gib=float(gib.group(1)) if gib else GPU_GIB,
        relays=relays_of(configs),
        run=run,
    )


def made(name: str, size: Size) -> str:
    """The text of a file of deploy/sizes."""
    text = (DEPLOY / size.base).read_text(encoding="utf-8")
    (nodes,) = re.findall(r"^# Nodes: .*\n", text, re.MULTILINE)
    source = str(DEPLOY / size.base)
    body = replaced(text[text.index("proxy_location") :], size.lines, source=source)
    body = with_model(body, f"hf://{size.model}")
    run = RunConfig.from_yaml(DEPLOY.parent / size.run)
    served = _served(size.model)
    changed = "" if run.model == served else f" with `model: {served}`"
    head = (
        f"# {size.title}\n"
        f"#   millrace check deploy/sizes/{name} --figures   # the arithmetic below\n"
        f"# Made by deploy/make_sizes.py from {size.base}, which explains the keys.\n"
        f"{nodes}#\n"
        f"# For {size.model.partition('/')[2]} and {size.run}{changed}:\n"
    )
    return with_figures(head + body, sizing(DEPLOY / "sizes" / name, head + body))


def main() -> None:
    """Write all files."""
    for name in CLUSTERS:
        file = DEPLOY / name
        text = file.read_text(encoding="utf-8")
        file.write_text(with_figures(text, sizing(file, text)), encoding="utf-8")
    (DEPLOY / "sizes").mkdir(exist_ok=True)
    texts = {name: made(name, size) for name, size in SIZES.items()}
    for name in SHIPPED:
        texts |= shipped_pair(name, DEPLOY.parent)
    for name, text in texts.items():
        (DEPLOY / "sizes" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
