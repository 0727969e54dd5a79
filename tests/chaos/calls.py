"""Calling an object in another process: one connection to a Unix socket per call."""

import asyncio
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from services.protocol.errors import NotReady

_CALL_S = 10.0
_LONG_POLLS = ("next_orders", "watch")


class Gone(ConnectionError):
    """The process ended before it answered."""


async def serve(target: Any, path: str) -> None:
    """Answer calls of the coroutine methods of `target` until cancelled."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, args = pickle.loads(await reader.read())
        try:
            result = True, await getattr(target, method)(*args)
        except Exception as error:  # noqa: BLE001  (the caller decides what to make of it)
            result = False, error
        writer.write(pickle.dumps(result))
        writer.close()

    async with await asyncio.start_unix_server(answer, path) as server:
        await server.serve_forever()


async def call(path: str, method: str, *args: Any) -> Any:
    """Call a method of the object that is served at `path`.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody serves there (yet).
        Gone: the process ended.
        Exception: whatever the method raised.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(pickle.dumps((method, args)))
        writer.write_eof()
        done, result = pickle.loads(await reader.read())
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise Gone(f"{method}: {error}") from None
    finally:
        writer.close()
    if not done:
        raise result
    return result


class BusOverSocket:
    """The weight bus in another process, absent in the same way as `peers.bus_peer` says."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    async def _call(self, method: str, *args: Any) -> Any:
        wait_s = args[-1] if method in _LONG_POLLS else 0.0
        try:
            async with asyncio.timeout(_CALL_S + wait_s):
                return await call(self._path, method, *args)
        except TimeoutError:
            raise NotReady(f"weight_bus.{method}: no answer in time") from None
        except OSError as error:
            raise NotReady(f"weight_bus is not up: {error}") from None
