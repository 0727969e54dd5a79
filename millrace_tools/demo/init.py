"""`millrace init`: the deployment files and examples of a clone or the package, in a folder."""

import argparse
import shutil
from pathlib import Path

from rich.console import Console

import services
from millrace_tools.command import command, option
from services.protocol.errors import InvalidInput

FOLDERS = ("deploy", "examples")
_CLONE = Path(services.__file__).parents[1]
_PACKED = Path(__file__).parent / "starter_files"  # only the wheel has it: see pyproject.toml
_MADE = ("__pycache__", "model*", "runs", "tasks.jsonl")


@command("init", option("folder", nargs="?", type=Path, help="(./millrace)"))
def init(arguments: argparse.Namespace, console: Console) -> int:
    """Write deployment files and examples into a folder; existing files stay as they are."""
    folder = arguments.folder or workplace()
    written = write_starter(folder)
    console.print(f"{len(written)} files written to {folder}", highlight=False, soft_wrap=True)
    return 0


def is_clone() -> bool:
    """Whether this is the repository, whose files are used where they are."""
    return all((_CLONE / name).is_dir() for name in FOLDERS) and not _PACKED.exists()


def workplace() -> Path:
    """The folder of the files: the clone, else `millrace` below the current folder."""
    return _CLONE if is_clone() else Path.cwd() / "millrace"


def write_starter(folder: Path) -> list[Path]:
    """Write the files into a folder; what is there already stays as it is.

    Returns:
        The files that were written.

    Raises:
        InvalidInput: the folder cannot be written, or this installation lacks the files.
    """
    source = _CLONE if is_clone() else _PACKED
    if not source.is_dir():
        fix = "This installation has no starter files; install the wheel or a clone again."
        raise InvalidInput("file", str(source), fix)
    written: list[Path] = []

    def copy(one: str, to: str) -> str:
        if not Path(to).exists():
            shutil.copyfile(one, to)
            written.append(Path(to))
        return to

    leave = shutil.ignore_patterns(*_MADE)
    try:
        for name in FOLDERS:
            shutil.copytree(
                source / name, folder / name, ignore=leave, copy_function=copy, dirs_exist_ok=True
            )
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
    return written
