"""`millrace init`: deployment files and examples in a folder of the user's."""

import argparse
from pathlib import Path

from rich.console import Console

from millrace_tools.command import command, option
from millrace_tools.demo.starter import workplace, write_starter


@command("init", option("folder", nargs="?", type=Path, help="(./millrace)"))
def init(arguments: argparse.Namespace, console: Console) -> int:
    """Write deployment files and examples into a folder; existing files stay as they are."""
    folder = arguments.folder or workplace()
    written = write_starter(folder)
    console.print(f"{len(written)} files written to {folder}", highlight=False, soft_wrap=True)
    return 0
