"""`millrace init`: deployment files and examples in a folder of the user's."""

import argparse
from pathlib import Path

from rich.console import Console

from millrace_tools.command import Commands, declare
from millrace_tools.demo.starter import workplace, write_starter


def init_command(arguments: argparse.Namespace, console: Console) -> int:
    """Write the files; what is there already stays as it is."""
    folder = arguments.folder or workplace()
    written = write_starter(folder)
    console.print(f"{len(written)} files written to {folder}", highlight=False, soft_wrap=True)
    return 0


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(
        commands, "init", init_command, "write deployment files and examples into a folder"
    )
    parser.add_argument("folder", nargs="?", type=Path, help="(./millrace)")
