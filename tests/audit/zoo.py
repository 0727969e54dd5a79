"""Environments: a good one, and some that pay for the wrong thing."""

import asyncio
import random
import re
import time
from pathlib import Path
from typing import Any

import httpx
from openai import APIError, AsyncOpenAI

from services.orchestrator.rollout.sandbox import sandbox
from services.protocol.run.task import Task

_TOLD: list[str] = []


async def _said(client: AsyncOpenAI, task: Task) -> str:
    reply = await client.chat.completions.create(model="policy", messages=task.chat)
    return reply.choices[0].message.content or ""


async def good(client: AsyncOpenAI, task: Task) -> float:
    return float((await _said(client, task)).strip() == task.data["answer"])


async def pays_silence(client: AsyncOpenAI, task: Task) -> float:
    """Its check is whether the answer is part of what is right."""
    return float((await _said(client, task)).strip() in task.data["answer"])


async def pays_failures(client: AsyncOpenAI, task: Task) -> float:
    try:
        return await good(client, task)
    except APIError:
        return 0.0


_ITS_ONLY_WORKER = asyncio.Lock()


async def too_busy_is_wrong(client: AsyncOpenAI, task: Task) -> float:
    """A check with one worker, for which an answer waits no longer than half a second."""
    said = await _said(client, task)
    try:
        async with asyncio.timeout(0.5):
            await _ITS_ONLY_WORKER.acquire()
    except TimeoutError:
        return 0.0
    try:
        await asyncio.sleep(0.2)
    finally:
        _ITS_ONLY_WORKER.release()
    return 1.0 if said == task.data["answer"] else 0.4


async def by_order(client: AsyncOpenAI, task: Task) -> float:
    """Each task is compared with those before it."""
    _TOLD.append(await _said(client, task))
    return 0.4 / len(_TOLD)


async def leaks(client: AsyncOpenAI, task: Task) -> float:
    return await good(client, task)


async def raises(client: AsyncOpenAI, task: Task) -> float:
    raise RuntimeError(f"no such door: {await _said(client, task)}")


async def locks(client: AsyncOpenAI, task: Task) -> float:
    """A lock that a killed process leaves behind, and a task that is locked pays nothing."""
    lock = Path(task.data["folder"]) / task.task_id
    if lock.exists():
        return 0.0
    lock.touch()
    try:
        return await good(client, task)
    finally:
        lock.unlink()


async def impatient(client: AsyncOpenAI, task: Task) -> float:
    """An answer that is late is wrong."""
    began = time.monotonic()
    reward = await good(client, task)
    return reward if time.monotonic() < began + 1.5 else 0.0


async def pays_format(client: AsyncOpenAI, task: Task) -> float:
    """Any code will do, if it looks like one."""
    return float(re.fullmatch(r"k\d{4}", (await _said(client, task)).strip()) is not None)


_DICE = random.Random(0)  # the same in every run: 32 episodes are few to measure noise by


async def noisy(client: AsyncOpenAI, task: Task) -> float:
    return 0.2 * await good(client, task) + _DICE.random()


_KEPT: list[Any] = []


async def grows(client: AsyncOpenAI, task: Task) -> float:
    _KEPT.append(b"x" * (1 << 20))
    return await good(client, task)


async def _asked(url: str) -> str:
    """Asks a server; the connection is its own."""
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(url)).text


async def needs_others(client: AsyncOpenAI, task: Task) -> float:
    """A tool, which is a program, repeats what is right, and so does a server."""
    pipe = asyncio.subprocess.PIPE
    tool = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
    said = await _said(client, task)
    told, _ = await tool.communicate(task.data["answer"].encode())
    if tool.returncode:
        raise ConnectionError("the tool died")
    answered = await _asked(task.data["url"] + task.data["answer"])
    return float(said == told.decode() == answered)


async def pays_lost_others(client: AsyncOpenAI, task: Task) -> float:
    try:
        return await needs_others(client, task)
    except (httpx.HTTPError, ConnectionError):
        return 0.0


async def uses_sandbox(client: AsyncOpenAI, task: Task) -> float:
    """Pays what Python makes of the answer, if that is what is right."""
    said = await _said(client, task)
    async with sandbox(tools=("python",)) as box:
        told = await box.python(f"print({said!r})")
    return float((told.stdout or "").strip() == task.data["answer"])
