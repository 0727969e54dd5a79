"""The process that runs a user's environment.

A worker reads orders and writes outcomes, one JSON object a line. An environment may block,
print, leak or call `sys.exit`: the orchestrator sees an outcome, or another worker.
"""

import asyncio
import importlib.util
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import httpx

from services.orchestrator.rollout.sandbox import sandboxes_at
from services.protocol.reward.named_rewards import named_rewards
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.run.task import Task
from services.workspaces.client import WorkspaceFailed

Rollout = Callable[..., Awaitable[Any]]
_SHOWN = 300  # characters of an error
_SANDBOXES = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
_NO_ORDERS = 113  # a worker's exit status when the orchestrator is gone


class EnvironmentHost:
    """Runs episodes of one rollout function side by side."""

    def __init__(self, rollout: Rollout, replies: BinaryIO) -> None:
        self._rollout = rollout
        # It takes seconds to import, which an environment that cannot be used shall not.
        from services.orchestrator.rollout import policy_client as policy

        self._replies, self._process = replies, os.getpid()
        http = policy.connections()
        self._sandboxes = httpx.AsyncClient(trust_env=False, limits=_SANDBOXES)
        self._client: Callable[..., Any] = lambda **calls: policy.policy_client(
            http, policy.PolicyCalls(**calls)
        )
        self._episodes: dict[int, asyncio.Task[None]] = {}
        self._cancelled: set[int] = set()

    def take(self, order: dict[str, Any]) -> None:
        """Start or cancel an episode."""
        number = order["id"]
        if "episode" in order:
            episode = asyncio.create_task(self._episode(number, order["episode"]))
            self._episodes[number] = episode
            episode.add_done_callback(lambda _: self._forget(number))
        elif number in self._episodes:
            self._cancelled.add(number)
            self._episodes[number].cancel()

    def _forget(self, number: int) -> None:
        self._episodes.pop(number, None)
        self._cancelled.discard(number)

    async def _episode(self, number: int, episode: dict[str, Any]) -> None:
        outcome: dict[str, Any]
        task = Task.model_validate(episode.pop("task"))
        url, key, timeout_s = episode["url"], episode["api_key"], episode.pop("sandbox_timeout_s")
        try:
            with sandboxes_at(self._sandboxes, url, api_key=key, timeout_s=timeout_s):
                outcome = _outcome(await self._rollout(self._client(**episode), task))
        except BaseException as error:  # noqa: BLE001  a user's code may raise anything
            ended = number in self._cancelled and isinstance(error, asyncio.CancelledError)
            reason = "cancelled" if ended else _reason(error)
            outcome = {"reason": reason, "error": f"{type(error).__name__}: {error}"[:_SHOWN]}
        if os.getpid() != self._process:  # a fork of the user's came back: this episode is not its
            os._exit(0)
        self.reply({"id": number} | outcome)

    def reply(self, message: dict[str, Any]) -> None:
        """Write one line; the process ends if nobody reads it."""
        try:
            _write(self._replies, message)
        except BrokenPipeError:
            os._exit(_NO_ORDERS)  # or the host would fork another worker, for ever


def _write(replies: BinaryIO, message: dict[str, Any]) -> None:
    """Write one line of JSON.

    Half of a surrogate pair, as in what a model wrote, becomes a question mark: the ledger could
    not hold it.
    """
    replies.write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    replies.flush()


def _reason(error: BaseException) -> str:
    """What failed: a workspace by its own name, and else the environment."""
    return error.reason if isinstance(error, WorkspaceFailed) else "environment_raised"


def _outcome(result: object) -> dict[str, Any]:
    if isinstance(result, str):
        return {"text": result}
    if isinstance(result, Mapping):
        try:
            return {"rewards": named_rewards(result)}
        except (TypeError, ValueError) as problem:
            return {"reason": "environment_result", "error": str(problem)[:_SHOWN]}
    if isinstance(result, list) and result:
        of_calls = [one for value in result if (one := _of_call(value)) is not None]
        if len(of_calls) == len(result):
            every = (one if isinstance(one, list) else [one] for one in of_calls)
            return {"reward": reward_sum(chain.from_iterable(every)), "of_calls": of_calls}
    if _is_reward(result):
        return {"reward": float(result)}
    error = f"rollout returned {result!r}"[:_SHOWN]
    return {"reason": "environment_result", "error": f"{error}; return a reward, rewards or a text"}


def _is_reward(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _of_call(value: object) -> float | list[float] | None:
    """A reward of a call, or one for each of its tokens; None for neither."""
    if isinstance(value, list) and value and all(map(_is_reward, value)):
        return [float(one) for one in value]
    return float(value) if _is_reward(value) else None


def load_rollout(name: str) -> Rollout:
    """The function of `file.py:function`; modules beside the file can be imported by it."""
    path, _, function = name.rpartition(":")
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rollout: Rollout = getattr(module, function)
    return rollout


def _read_orders(orders: BinaryIO, loop: asyncio.AbstractEventLoop, host: EnvironmentHost) -> None:
    for line in orders:
        try:
            order = json.loads(line)
        except ValueError:  # the rest of a line that a worker before this one had begun
            continue
        loop.call_soon_threadsafe(host.take, order)
    os._exit(_NO_ORDERS)  # the orchestrator is gone, and the loop may be blocked


async def _work(rollout: Rollout, orders: BinaryIO, replies: BinaryIO) -> None:
    host = EnvironmentHost(rollout, replies)
    host.reply({"worker": os.getpid()})
    given = (orders, asyncio.get_running_loop(), host)
    threading.Thread(target=_read_orders, args=given, daemon=True).start()
    await asyncio.Event().wait()


def serve(name: str, orders: BinaryIO, replies: BinaryIO) -> None:
    """Import an environment once, and fork a worker for it; fork another whenever one dies."""
    try:
        rollout = load_rollout(name)
        import_module("services.orchestrator.rollout.policy_client")  # once, not in each worker
    except BaseException as error:  # noqa: BLE001  a user's file may raise anything
        _write(replies, {"error": f"{type(error).__name__}: {error}"[:_SHOWN]})
        return
    code = 0
    while code != _NO_ORDERS:
        worker = os.fork()
        if worker == 0:
            os.setpgid(0, 0)
            asyncio.run(_work(rollout, orders, replies))
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        with suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)  # and the processes that it started


if __name__ == "__main__":
    given, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # An environment, and what it starts, reads no orders. What multiprocessing forks closes
    # `sys.stdin`, which a thread that reads from it would lock for ever.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what an environment prints goes to the log, not among the replies
    serve(sys.argv[1], given, out)
