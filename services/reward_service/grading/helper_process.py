"""Runs trusted functions over untrusted text in processes that can be killed.

One helper process imports what is needed and forks a child for each call, so a call costs
milliseconds, leaves nothing behind and ends at its deadline whatever it is doing.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import Any

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.reward_service.grading.helper_main import longest_s
from services.reward_service.sandbox.slot import Control

_log = Log("reward_service")

_MAIN = "services.reward_service.grading.helper_main"
_START_S = 120.0
_GRACE_S = 60.0
"""For the helper to fork, to kill and to answer: only a hang takes longer."""
_MAX_REPLY_BYTES = 1 << 22


class HelperTimeout(RuntimeError):
    """The call was not done at its deadline and was killed."""


class HelperFailed(RuntimeError):
    """The helper could not start or is gone: the call says nothing of its arguments."""


class CallFailed(RuntimeError):
    """The function raised, or its process died, on these arguments.

    Attributes:
        kind: the name of the exception's class; empty if the process died.
    """

    def __init__(self, message: str, *, kind: str = "") -> None:
        self.kind = kind
        super().__init__(message)


class HelperProcess:
    """Calls functions by name; see `services.reward_service.grading.helper_main` for what it runs.

    All calls run at once: who calls it bounds how many there are.

    Args:
        modules: what it imports, or calls, before the first call.
    """

    def __init__(self, modules: list[str]) -> None:
        self._modules = modules
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None

    async def call(self, function: str, arguments: Any, *, timeout_s: float) -> Any:
        """Run `module:function` on JSON and return its JSON.

        The limit does not count time in which the call waits for a core.

        Raises:
            HelperTimeout: it was killed at its deadline.
            CallFailed: it raised or died, or there is no such function.
            HelperFailed: the helper could not start, or is gone.
        """
        request = json.dumps({"function": function, "arguments": arguments}).encode()
        helper = await self._start()
        reply = await self._exchange(request, timeout_s)
        if not reply:
            if helper.poll() is not None:
                raise HelperFailed("the helper is gone")  # and its children with it
            raise CallFailed("the process died")
        try:
            answer = json.loads(reply)
        except ValueError:  # killed while it wrote
            answer = {"killed": True}
        if answer.get("killed"):
            raise HelperTimeout(f"not done in {timeout_s:g} s")
        if "error" in answer:
            raise CallFailed(answer["error"], kind=answer["kind"])
        return answer["value"]

    async def _exchange(self, request: bytes, timeout_s: float) -> bytes:
        ours, theirs = socket.socketpair()
        order = json.dumps({"timeout_s": timeout_s}).encode()
        try:
            with theirs:
                assert self._control is not None
                self._control.send(order, [theirs.fileno()])
            reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_REPLY_BYTES)
        except OSError as error:
            ours.close()
            self.close()
            raise HelperFailed(f"the helper is gone: {error}") from error
        try:
            async with asyncio.timeout(longest_s(timeout_s) + _GRACE_S):
                writer.write(request)
                writer.write_eof()
                return await reader.read()
        except TimeoutError:
            self.close()
            raise HelperFailed("the helper hangs") from None
        except OSError as error:
            raise HelperFailed(f"the helper is gone: {error}") from error
        finally:
            writer.close()

    async def _start(self) -> subprocess.Popen[bytes]:
        """The helper, started if there is none.

        Raises:
            HelperFailed: it cannot start.
        """
        async with self._starting:
            if self._process is not None and self._process.poll() is None:
                return self._process
            if self._process is not None:
                RewardMetrics.helper_restarts.inc()
            self.close()
            self._control = control = Control()
            with control.theirs as theirs:
                command = [sys.executable, "-m", _MAIN, str(theirs.fileno()), *self._modules]
                self._process = helper = subprocess.Popen(  # noqa: ASYNC220 - returns after exec
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                    start_new_session=True,
                )
            try:
                hello, _ = await control.receive(_START_S)
                if hello != b"ready":
                    said = hello.decode(errors="replace")
                    raise HelperFailed(f"the helper did not start: {said}")
            except TimeoutError as error:
                self.close()
                raise HelperFailed(f"the helper did not start in {_START_S:g} s") from error
            except (HelperFailed, asyncio.CancelledError):
                self.close()
                raise
            return helper

    def close(self) -> None:
        """End the helper and its calls; safe to call again."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait(_GRACE_S)
            self._process = None
