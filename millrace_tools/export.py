"""`millrace export`: a checkpoint as a Hugging Face folder."""

import argparse
import subprocess
import sys

from rich.console import Console

from millrace_tools.command import Commands, declare

_DTYPES = ("float32", "bfloat16", "float16")


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(
        commands,
        "export",
        export_command,
        "write a checkpoint as a Hugging Face folder, without a cluster",
    )
    parser.add_argument("source", help="run directory, or one of its checkpoints")
    parser.add_argument("folder", help="to be made; it must not exist")
    parser.add_argument("--dtype", choices=_DTYPES, help="of the weights (as they were served)")
    parser.add_argument(
        "--adapter", action="store_true", help="only the LoRA adapter, in the PEFT format"
    )


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
