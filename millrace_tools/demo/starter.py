"""The files that a user begins with: deployment files and examples, from a clone or the package."""

import shutil
from pathlib import Path

import services
from services.protocol.errors import InvalidInput

FOLDERS = ("deploy", "examples")
_CLONE = Path(services.__file__).parents[1]
_PACKED = Path(__file__).parent / "starter_files"  # only the wheel has it: see pyproject.toml
_MADE = ("__pycache__", "model*", "runs", "tasks.jsonl")


def is_clone() -> bool:
    """Whether this is the repository, whose files are used where they are."""
    return all((_CLONE / name).is_dir() for name in FOLDERS) and not _PACKED.exists()


def workplace() -> Path:
    """Where the files are, or will be: the clone, else the folder `millrace` below this one."""
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
