"""`millrace export`: a checkpoint as a Hugging Face folder."""

import argparse
import subprocess
import sys
from typing import Any

from rich.console import Console

_DTYPES = ("float32", "bfloat16", "float16")


def add_export_command(commands: Any) -> None:
    """Add the command to the parser."""
    export = commands.add_parser(
        "export", help="write a checkpoint as a Hugging Face folder, without a cluster"
    )
    export.add_argument("source", help="run directory, or one of its checkpoints")
    export.add_argument("folder", help="to be made; it must not exist")
    export.add_argument("--dtype", choices=_DTYPES, help="of the weights (as they were served)")
    export.add_argument(
        "--adapter", action="store_true", help="only the LoRA adapter, in the PEFT format"
    )
    export.set_defaults(command=export_command)


def export_command(arguments: argparse.Namespace, console: Console) -> int:
    """Have a process that may load torch do it; it says itself what went wrong."""
    command = [
        sys.executable,
        "-m",
        "services.trainer.checkpoints.export",
        arguments.source,
        arguments.folder,
    ]
    if arguments.dtype is not None:
        command += ["--dtype", arguments.dtype]
    if arguments.adapter:
        command.append("--adapter")
    return subprocess.run(command, check=False).returncode
