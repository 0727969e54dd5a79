"""`millrace init`: files to begin with, from a clone or the package, in a folder."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from rich.console import Console

import services
from millrace_tools.command import command, option
from millrace_tools.demo.gpu_starter import OPTIONS, wants_pair, write_pair
from millrace_tools.demo.task_starter import write_task
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput

FOLDERS = ("deploy", "examples")
_CLONE = Path(services.__file__).parents[1]
_PACKED = Path(__file__).parent / "starter_files"  # only the wheel has it: see pyproject.toml
_MADE = ("__pycache__", "model*", "runs", "tasks.jsonl")
_GENERATORS = ("board.py", "boards", "make_dashboards.py")
"""What makes Grafana's dashboards: an operator needs the dashboards alone."""


@command(
    "init",
    option(
        "folder",
        nargs="?",
        type=Path,
        help="(./millrace; with --task ./NAME; with --gpus the model's name)",
    ),
    option("--task", metavar="NAME", help="a task of your own: five files that run as they are"),
    *OPTIONS,
)
def init(arguments: argparse.Namespace, console: Console) -> int:
    """Write files to begin with into a folder; existing files stay as they are.

    Deployment files and examples, for operators; with --task a task of one's own; with --gpus,
    --gpu-gib and --model a deployment and a run file that fit them, or what would fit.
    """
    name = arguments.task
    if wants_pair(arguments):
        folder, commands = write_pair(arguments, starter_files())
        print_line(f"deploy.yaml and run.yaml written to {folder}", console)
        for line in commands:
            print_line(f"  {line}", console)
        return 0
    if name is None:
        folder = arguments.folder or workplace()
        written = write_starter(folder)
    else:
        folder = arguments.folder or Path(name)
        laptop = starter_files() / "deploy" / "laptop.yaml"
        written = write_task(name, folder, deployment=laptop, model=demo_model(seed=0))
    print_line(f"{len(written)} files written to {folder}", console)
    if name is not None:
        print_line(f"  less {folder / 'README.md'}", console)
        print_line(f"  {program()} demo {folder}", console)
    return 0


def program() -> str:
    """What this shell calls the command: after `make demo` it may not be on the PATH."""
    own = Path(sys.prefix) / "bin" / "millrace"
    return os.path.relpath(own) if shutil.which("millrace") is None and own.exists() else "millrace"


def is_clone() -> bool:
    """Whether this is the repository, whose files are used where they are."""
    return all((_CLONE / name).is_dir() for name in FOLDERS) and not _PACKED.exists()


def workplace() -> Path:
    """The folder of the files: the clone, else `millrace` below the current folder."""
    return _CLONE if is_clone() else Path.cwd() / "millrace"


def demo_model(seed: int) -> Path:
    """The folder of the example's model, whether it was made yet or not."""
    return workplace() / "models" / f"tiny_code-seed{seed}"


def write_starter(folder: Path) -> list[Path]:
    """Write the files into a folder; what is there already stays as it is.

    Returns:
        The files that were written.

    Raises:
        InvalidInput: the folder cannot be written, or this installation lacks the files.
    """
    source = starter_files()
    written: list[Path] = []

    def copy(one: str, to: str) -> str:
        if not Path(to).exists():
            shutil.copyfile(one, to)
            written.append(Path(to))
        return to

    leave = shutil.ignore_patterns(*_MADE, *_GENERATORS)
    try:
        for name in FOLDERS:
            shutil.copytree(
                source / name, folder / name, ignore=leave, copy_function=copy, dirs_exist_ok=True
            )
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
    return written


def starter_files() -> Path:
    """The folder of `FOLDERS`, to be read.

    Raises:
        InvalidInput: this installation lacks them.
    """
    source = _CLONE if is_clone() else _PACKED
    if not source.is_dir():
        fix = "This installation has no starter files; install the wheel or a clone again."
        raise InvalidInput("file", str(source), fix)
    return source
