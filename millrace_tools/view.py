"""`millrace view`: the page of runs, without a cluster."""

import argparse
import socket
from pathlib import Path

from rich.console import Console

from millrace_tools.command import command, option
from services.protocol.errors import InvalidInput

PORT = 8800
_HOST = "127.0.0.1"
_HIGHEST_PORT = 65535


@command(
    "view",
    option("run_dir", help="such as runs/tiny_code-...; or a folder of several"),
    option("--port", type=int, default=PORT, help=f"of the page ({PORT}; 0: any)"),
)
def view(arguments: argparse.Namespace, console: Console) -> int:
    """Show a run directory in the browser, without a cluster."""
    # FastAPI takes half a second to import; only this command needs it.
    from services.page.local_server import serve_locally
    from services.page.run_store import FolderRunStore

    store = FolderRunStore(arguments.run_dir)
    with _listening(arguments.port) as listener:
        url = f"http://{_HOST}:{listener.getsockname()[1]}/"
        console.print(f"{Path(arguments.run_dir).resolve().name} at {url}", soft_wrap=True)
        console.print("[dim]Ctrl-C ends it.[/]")
        serve_locally(store, listener)
    return 0


def _listening(port: int) -> socket.socket:
    """A socket that only this machine reaches.

    Raises:
        InvalidInput: the port is out of range, in use or not permitted.
    """
    if not 0 <= port <= _HIGHEST_PORT:
        raise InvalidInput("--port", port, f"Give a number from 0 to {_HIGHEST_PORT}.")
    try:
        return socket.create_server((_HOST, port))
    except OSError as error:
        fix = f"It cannot be used: {error.strerror}. Give another, or 0 for any that is free."
        raise InvalidInput("--port", port, fix) from None
