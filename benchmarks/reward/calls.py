"""Calls of a workspace, beside the same code without any wall and with a bubblewrap for each call.

    python -m benchmarks.reward.calls [--rounds 20] [--json]

Wall milliseconds of one call at a time: medians over rounds, in which each way has its turn. Where
`ipykernel` is installed, a Jupyter kernel is a way as well: SandboxFusion and the code interpreter
of E2B run cells in one. It has no wall here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.report import in_turn, machine, options_of, show, write
from services.protocol.reward.workspaces import ExecCall, OpenWorkspace, PythonCall
from services.reward_service.isolation.bubblewrap import Bubblewrap
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces

CODE, PYTHON = "print(sum(range(1000)))", "/usr/bin/python3"
SAID = "499500\n"
_MOUNTS = ("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--proc", "/proc")
_MORE = ("--symlink", "usr/lib64", "/lib64", "--unshare-all", "--die-with-parent")
EACH = 5
"""Calls of a way in a turn."""
_KERNEL = "a Jupyter kernel without any wall"

Way = Callable[[], Awaitable[str]]


async def program(*command: str) -> str:
    """What a plain process prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe)
    return (await process.communicate())[0].decode()


def ways(service: Workspaces, workspace: Workspace, bubblewrap: str) -> dict[str, Way]:
    """The same code, each way."""

    async def cell() -> str:
        return (await workspace.python(PythonCall(code=CODE))).stdout

    async def in_workspace() -> str:
        return (await workspace.exec(ExecCall(argv=[PYTHON, "-c", CODE]))).stdout

    async def new_workspace() -> str:
        one = await service.open(OpenWorkspace(), owner="")
        try:
            return (await one.python(PythonCall(code=CODE))).stdout
        finally:
            await one.close("closed")

    return {
        "a cell of a workspace": cell,
        "a program in a workspace": in_workspace,
        "a new workspace and one cell": new_workspace,
        "a program without any wall": lambda: program(PYTHON, "-c", CODE),
        "a program in a bubblewrap of its own": lambda: program(
            bubblewrap, *_MOUNTS, *_MORE, PYTHON, "-c", CODE
        ),
    }


@asynccontextmanager
async def kernel() -> AsyncIterator[Way]:
    """A Jupyter kernel, and a cell in it."""
    manager, client = await import_module("jupyter_client.manager").start_new_async_kernel()

    async def cell() -> str:
        said: list[str] = []

        def hear(message: Any) -> None:
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])

        await client.execute_interactive(CODE, output_hook=hear)
        return "".join(said)

    try:
        yield cell
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def new_kernel() -> str:
    """What one cell of a kernel of its own prints."""
    async with kernel() as cell:
        return await cell()


async def measure(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call, by way and round.

    Raises:
        RuntimeError: a way did not print what it must.
    """
    service = Workspaces(
        WorkspacesConfig(starts_per_s=1000.0, starts_at_once=1000, shared_user=True)
    )
    await service.start()
    try:
        workspace = await service.open(OpenWorkspace(), owner="")
        found = ways(service, workspace, Bubblewrap.here().path)
        if find_spec("ipykernel") is None:
            return await _timed(found, rounds)
        async with kernel() as cell:
            found[f"a cell of {_KERNEL}"] = cell
            found[f"{_KERNEL}, started for one cell"] = new_kernel
            return await _timed(found, rounds)
    finally:
        await service.aclose()


async def _timed(found: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    for round_ in range(-1, rounds):  # the first warms up
        for name, way in in_turn(list(found.items()), round_):
            began = time.perf_counter()
            for _ in range(EACH):
                if (said := await way()) != SAID:
                    raise RuntimeError(f"{name} printed {said!r}")
            if round_ >= 0:
                taken.setdefault(name, []).append(1e3 * (time.perf_counter() - began) / EACH)
    return taken


def main() -> None:
    """Measure and print."""
    options = options_of(__doc__, "reward_calls", rounds=20).parse_args()
    taken = asyncio.run(measure(options.rounds))
    figures = {name: round(median(some), 2) for name, some in taken.items()}
    plain = figures["a program without any wall"]
    rows = [(name, f"{one:.1f}", f"{one / plain:.2f}") for name, one in figures.items()]
    show(("way", "ms", "of a program without any wall"), rows)
    write(options.json, {**machine(), "rounds": options.rounds, "milliseconds": figures})


if __name__ == "__main__":
    main()
