"""`millrace export`: a checkpoint as a Hugging Face folder."""

import argparse
import subprocess
import sys

from rich.console import Console

from millrace_tools.command import command, option

_DTYPES = ("float32", "bfloat16", "float16")


@command(
    "export",
    option("source", help="run directory, or one of its checkpoints"),
    option("folder", help="to be made; it must not exist"),
    option("--dtype", choices=_DTYPES, help="of the weights (as they were served)"),
    option("--adapter", action="store_true", help="only the LoRA adapter, in the PEFT format"),
)
def export(arguments: argparse.Namespace, console: Console) -> int:
    """Write a checkpoint as a Hugging Face folder, without a cluster."""
    # In a process that may load torch; it prints its own errors.
    program = [sys.executable, "-m", "services.trainer.checkpoints.export"]
    dtype = ["--dtype", arguments.dtype] if arguments.dtype is not None else []
    adapter = ["--adapter"] if arguments.adapter else []
    done = subprocess.run([*program, arguments.source, arguments.folder, *dtype, *adapter])
    return done.returncode
