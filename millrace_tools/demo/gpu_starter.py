"""`millrace init --gpus`: a deployment file and a run file for a model on given GPUs."""

import argparse
import os
from pathlib import Path
from typing import get_args

from millrace_tools.capacity.sizing import Sizing, countable_shape
from millrace_tools.command import Option, option
from millrace_tools.sizes.alternatives import refusal
from millrace_tools.sizes.choice import LENGTHS, Offload, Wish, first_fitting
from millrace_tools.sizes.hardware import Hardware
from millrace_tools.sizes.pair import Pair
from services.protocol.errors import InvalidInput
from services.protocol.model_source import model_folder, on_hub
from services.protocol.placement import Placement
from services.protocol.run.orchestrator import RunConfig

_MOST_RANK = 512  # LoraConfig's
_FILES = ("deploy.yaml", "run.yaml")

OPTIONS: tuple[Option, ...] = (
    option("--gpus", type=int, help="a deployment and a run file for so many GPUs of one node"),
    option("--gpu-gib", type=float, help="memory of each GPU, GiB"),
    option("--model", help="such as hf://Qwen/Qwen3-0.6B, or a folder"),
    option(
        "--placement",
        choices=get_args(Placement),
        help="whether ranks and engines share GPUs (what fits longer answers; else separate)",
    ),
    option("--example", choices=sorted(LENGTHS), default="gsm8k", help="its tasks (gsm8k)"),
    option("--lora", type=int, metavar="RANK", help="train an adapter of this rank"),
    option(
        "--offload",
        choices=get_args(Offload),
        help="what waits in host memory during a step (the moments, if need be)",
    ),
    option("--cpus", type=int, help="CPU cores of the node (16 for each GPU)"),
    option("--host-gib", type=float, help="memory of the node, GiB (enough)"),
    option("--tier", choices=("A", "B"), default="B", help="of sandboxes (B)"),
)


def wants_pair(arguments: argparse.Namespace) -> bool:
    """Whether the command line asks for a pair.

    Raises:
        InvalidInput: with some of the options that a pair needs, or a number that is none.
    """
    needed = {
        "--gpus": arguments.gpus,
        "--gpu-gib": arguments.gpu_gib,
        "--model": arguments.model,
    }
    given = [name for name, value in needed.items() if value is not None]
    if not given:
        return False
    if arguments.task is not None:
        raise InvalidInput("--task", arguments.task, "Leave it out: --example names the tasks.")
    for name, value in needed.items():
        if value is None:
            raise InvalidInput(name, None, f"Give it together with {' and '.join(given)}.")
    numbers = needed | {"--cpus": arguments.cpus, "--host-gib": arguments.host_gib}
    for name, value in (numbers | {"--lora": arguments.lora}).items():
        if isinstance(value, int | float) and not 0 < value < 1e6:
            raise InvalidInput(name, value, "Give a positive number.")
    if arguments.lora is not None and arguments.lora > _MOST_RANK:
        raise InvalidInput("--lora", arguments.lora, f"Give a rank of at most {_MOST_RANK}.")
    return True


def write_pair(arguments: argparse.Namespace, source: Path) -> tuple[Path, list[str]]:
    """Write both files.

    Args:
        arguments: the command line.
        source: folder of `deploy` and `examples`.

    Returns:
        The folder of the files, and the commands to type next.

    Raises:
        InvalidInput: the model does not fit, with what would; or the folder cannot be used.
    """
    run_file = source / "examples" / arguments.example / "run.yaml"
    wish, sizing = _fitting(arguments, run_file)
    folder: Path = arguments.folder or Path(wish.served_name)
    deployment, run = (folder / name for name in _FILES)
    tasks = folder / "tasks.jsonl"
    prepare = Path(os.path.relpath(run_file.with_name("prepare.py")))
    pair = Pair(
        title=f"{wish}.",
        name=str(deployment),
        run_name=str(run),
        tasks=tasks.name,
        run_root="runs",
        prepare=f"python {prepare} --out {tasks}",
        made_by="`millrace init`",
    )
    base = source / "deploy" / "cluster.yaml"
    texts = {
        deployment: pair.deployment(base, wish, sizing),
        run: pair.run(run_file, wish, sizing),
    }
    _write(folder, texts)
    gib = f"{arguments.gpu_gib:g}"
    check = f"millrace check {deployment} --run {run} --figures --gpu-gib {gib}"
    return folder, [f"python {prepare} --out {tasks}", check]


def _fitting(arguments: argparse.Namespace, run_file: Path) -> tuple[Wish, Sizing]:
    """What is wanted, in the placement that fits, and the settings for it."""
    model = arguments.model
    if not on_hub(model):  # services have other current folders
        model = str(model_folder(model).resolve())
    shape = countable_shape(model, field="--model")
    hardware = Hardware(
        gpus=arguments.gpus,
        gpu_gib=arguments.gpu_gib,
        cpus=arguments.cpus,
        host_gib=arguments.host_gib,
        tier=arguments.tier,
    )
    placements: tuple[Placement, ...] = ("separate", "shared")
    if arguments.placement is not None:
        placements = (arguments.placement,)
    elif arguments.gpus == 1:
        placements = ("shared",)
    wishes = [
        Wish(
            model=model,
            shape=shape,
            hardware=hardware,
            placement=placement,
            run=RunConfig.from_yaml(run_file),
            lengths=LENGTHS[arguments.example],
            lora=arguments.lora,
            offload=arguments.offload,
        )
        for placement in placements
    ]
    if (found := first_fitting(wishes)) is None:
        raise refusal(wishes)
    return found


def _write(folder: Path, texts: dict[Path, str]) -> None:
    for path in texts:
        if path.exists():
            fix = "It is there already: name another folder, or remove it."
            raise InvalidInput("folder", str(path), fix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
