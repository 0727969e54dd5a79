"""Servers of the tools of verifiers' tasksets: programs that verifiers starts."""

import asyncio
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from services.protocol.errors import InvalidInput


def check_servers(toolsets: Sequence[Any]) -> None:
    """Have the servers of these tools find their modules.

    verifiers starts each as `python -m MODULE` in a folder of its own, and waits for it for minutes
    even if it has ended. What this process has on its path for imports beside its packages, such as
    the folder of an environment's file, is therefore given to the programs that it starts.

    Raises:
        InvalidInput: a module starts no server when it is run.
    """
    modules = {type(one).__module__: type(one) for one in toolsets if not one.config.url}
    for module, toolset in modules.items():
        if "__main__" not in inspect.getsource(sys.modules[module]):
            fix = f'End it with `if __name__ == "__main__": {toolset.__name__}.run()`.'
            raise InvalidInput("verifiers tools: module", module, fix)
    if modules:
        os.environ["PYTHONPATH"] = os.pathsep.join(_own_path())


def _own_path() -> list[str]:
    """Where this process imports from, but for the folders of Python itself and its packages."""
    of_python = [Path(one).resolve() for one in (sys.prefix, sys.base_prefix)]
    folders = [Path(one).resolve() for one in sys.path if one]
    return [
        str(folder)
        for folder in dict.fromkeys(folders)
        if not any(folder.is_relative_to(one) for one in of_python)
    ]


class SharedTools:
    """Servers that all episodes share, from the first episode to the end of the process.

    Args:
        toolsets: of the taskset.
    """

    def __init__(self, toolsets: Sequence[Any]) -> None:
        self._toolsets, self._running = toolsets, AsyncExitStack()
        self._started: asyncio.Task[Mapping[str, Any]] | None = None

    async def servers(self) -> Mapping[str, Any]:
        """All of them by name; if they have failed to start, it is tried again."""
        if not self._toolsets:
            return {}
        started = self._started
        if started is None or (started.done() and (started.cancelled() or started.exception())):
            started = self._started = asyncio.create_task(self._start())
        return await asyncio.shield(started)

    async def _start(self) -> Mapping[str, Any]:
        serve = import_module("verifiers.v1.mcp").serve_shared
        servers: Mapping[str, Any] = await self._running.enter_async_context(serve(self._toolsets))
        return servers
