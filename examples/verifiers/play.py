"""Plays a taskset of verifiers 0.4 for a run of Millrace, as agents outside.

    python play.py write TASKSET tasks.jsonl --heldout 50
    python play.py play TASKSET --url http://127.0.0.1:8000

It needs verifiers and httpx, and nothing of Millrace: run it where verifiers is installed. `write`
makes the run's task file; `play` takes the run's sessions, has an agent of verifiers play each, and
says what the taskset's rewards come to. A rollout that fails has no reward.
"""

import argparse
import asyncio
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.mcp import serve_shared
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

TAKE_S, AGAIN_S = 20.0, 2.0


def load(name: str, arguments: dict[str, Any]) -> vf.Taskset:
    """The taskset of this name."""
    return load_taskset(taskset_config_type(name)(id=name, **arguments))


def write(tasks: dict[int, vf.Task], out: Path, heldout: int) -> None:
    """Write the run's task file; the last tasks are held out."""
    lines = []
    for place, task in tasks.items():
        split = "train" if place < len(tasks) - heldout else "heldout"
        prompt = task.data.prompt
        said = prompt if isinstance(prompt, str) else task.data.name or f"task {place}"
        row = {"task_id": f"{split}-{place}", "split": split, "data": {"place": place}}
        lines.append(json.dumps(row | {"messages": [{"role": "user", "content": said}]}) + "\n")
    out.write_text("".join(lines), encoding="utf-8")


class Player:
    """Has agents play the sessions that a router offers.

    Args:
        tasks: by their places in the taskset.
        url: of the router.
        harness: of verifiers.
        tools: servers of the taskset's own tools, by name.
    """

    def __init__(
        self,
        tasks: dict[int, vf.Task],
        url: str,
        harness: dict[str, Any],
        tools: Mapping[str, Any] | None = None,
    ) -> None:
        self._tasks, self._url, self._harness = tasks, url.rstrip("/"), harness
        self._tools = tools or {}
        self._numbers = itertools.count()

    async def play(self, parallel: int) -> None:
        """Play as many at once, until cancelled."""
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=2 * TAKE_S) as router,
            asyncio.TaskGroup() as workers,
        ):
            for _ in range(parallel):
                workers.create_task(self._work(router))

    async def _work(self, router: httpx.AsyncClient) -> None:
        while True:
            try:
                await self.play_next(router)
            except httpx.HTTPError as error:  # the router starts again, for example
                print(f"{type(error).__name__}: {error}", flush=True)
                await asyncio.sleep(AGAIN_S)

    async def play_next(self, router: httpx.AsyncClient, take_s: float = TAKE_S) -> bool:
        """One session; False if none is offered within `take_s`.

        Raises:
            httpx.HTTPError: the router cannot be reached, or refuses.
        """
        answer = await router.post("/v1/sessions/take", json={"wait_s": take_s})
        taken = answer.raise_for_status().json()
        if taken["session"] is None:
            return False
        session = taken["session"]["id"]
        trace = await self.play_task(session, self._tasks[taken["task"]["data"]["place"]])
        ending = {"reward": trace.reward} if trace.ok else {"failure": str(trace.errors)[:300]}
        if not trace.ok:
            print(f"{session}: {ending['failure']}", flush=True)
        (await router.post(f"/v1/sessions/{session}/finish", json=ending)).raise_for_status()
        return True

    async def play_task(self, session: str, task: vf.Task) -> vf.Trace:
        """One rollout of verifiers, whose calls are recorded in the session."""
        key = f"MILLRACE_SESSION_{next(self._numbers)}"  # verifiers reads keys from variables
        os.environ[key] = session
        try:
            client = vf.EvalClientConfig(base_url=f"{self._url}/v1", api_key_var=key)
            config = vf.AgentConfig(
                model="policy",
                client=client,
                harness=self._harness,
                runtime=vf.SubprocessConfig(),
            )
            return await vf.Agent(config).run(task, tools=self._tools)
        finally:
            del os.environ[key]


async def play(taskset: vf.Taskset, given: argparse.Namespace) -> None:
    """Play until interrupted; the taskset's own tools are there for all agents."""
    tasks, harness = dict(enumerate(taskset)), {"id": given.harness}
    async with serve_shared(taskset.toolsets(taskset.config)) as tools:
        await Player(tasks, given.url, harness, tools).play(given.parallel)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Play a taskset of verifiers for a run.")
    parser.add_argument("--arguments", type=json.loads, default={}, help="of the taskset, as JSON")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write the run's task file")
    playing = commands.add_parser("play", help="play the run's sessions, until interrupted")
    for one in (writing, playing):
        one.add_argument("taskset", help="as verifiers knows it")
    writing.add_argument("out", type=Path, help="task file, JSON lines")
    writing.add_argument("--heldout", type=int, default=50, help="tasks to evaluate")
    playing.add_argument("--url", default="http://127.0.0.1:8000", help="of the router")
    playing.add_argument("--parallel", type=int, default=8, help="agents at once")
    playing.add_argument("--harness", default="null", help="verifiers' harness: null only chats")
    given = parser.parse_args()
    taskset = load(given.taskset, given.arguments)
    if given.command == "write":
        write(dict(enumerate(taskset)), given.out, given.heldout)
        return
    try:
        asyncio.run(play(taskset, given))
    except KeyboardInterrupt:
        print("no more sessions are taken")


if __name__ == "__main__":
    main()
