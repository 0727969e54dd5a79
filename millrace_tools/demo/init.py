"""`millrace init`: deployment files and examples in a folder of the user's."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.demo.starter import workplace, write_starter


def init_command(arguments: argparse.Namespace, console: Console) -> int:
    """Write the files; what is there already stays as it is."""
    folder = arguments.folder or workplace()
    written = write_starter(folder)
    console.print(f"{len(written)} files written to {folder}", highlight=False, soft_wrap=True)
    return 0


def add_init_command(commands: Any) -> None:
    """Add `init` to the subcommands."""
    init = commands.add_parser("init", help="write deployment files and examples into a folder")
    init.add_argument("folder", nargs="?", type=Path, help="(./millrace)")
    init.set_defaults(command=init_command)
