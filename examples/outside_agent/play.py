"""Lets the clerk serve the customers of a run: it takes sessions, and says what they earned.

    python -m examples.outside_agent.play --url http://127.0.0.1:8000

It ends at Ctrl-C.
"""

import argparse
import asyncio
from typing import Any

import httpx
from agents import AgentsException, MaxTurnsExceeded, ModelBehaviorError, OpenAIProvider
from openai import AsyncOpenAI, OpenAIError

from examples.outside_agent.agent import serve

TAKE_S, AGAIN_S = 20.0, 2.0


async def play(url: str, parallel: int) -> None:
    """Serve as many customers at once as `parallel`, until cancelled."""
    limits = httpx.Limits(max_connections=2 * parallel)
    async with (
        httpx.AsyncClient(base_url=url, timeout=2 * TAKE_S, limits=limits) as router,
        asyncio.TaskGroup() as clerks,
    ):
        for _ in range(parallel):
            clerks.create_task(_serve_all(router))


async def _serve_all(router: httpx.AsyncClient) -> None:
    while True:
        try:
            await serve_next(router)
        except httpx.HTTPError as error:  # the router starts again, for example
            print(f"{type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(AGAIN_S)


async def serve_next(router: httpx.AsyncClient, take_s: float = TAKE_S) -> bool:
    """One customer; False if nobody comes within `take_s`.

    Raises:
        httpx.HTTPError: the router cannot be reached, or refuses.
    """
    answer = await router.post("/v1/sessions/take", json={"wait_s": take_s})
    taken = answer.raise_for_status().json()
    if taken["session"] is None:
        return False
    session = taken["session"]["id"]
    ending = await _ending(str(router.base_url.join("/v1")), session, taken["task"])
    (await router.post(f"/v1/sessions/{session}/finish", json=ending)).raise_for_status()
    return True


async def _ending(base_url: str, session: str, task: dict[str, Any]) -> dict[str, Any]:
    """What is said of a session: a mistake of the model is worth 0, any other failure nothing."""
    async with AsyncOpenAI(base_url=base_url, api_key=session) as client:
        try:
            asked = await serve(
                task["messages"][-1]["content"],
                task["data"]["prices"],
                OpenAIProvider(openai_client=client),
            )
        except (MaxTurnsExceeded, ModelBehaviorError):  # no sum, or a tool that there is not
            return {"reward": 0.0}
        except (OpenAIError, AgentsException) as error:
            print(f"{session}: {type(error).__name__}: {error}", flush=True)
            return {"failure": f"{type(error).__name__}: {error}"}
    return {"reward": float(asked == str(task["data"]["total"]))}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Serve the customers of a run.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the router")
    parser.add_argument("--parallel", type=int, default=16, help="customers at once")
    options = parser.parse_args()
    try:
        asyncio.run(play(options.url, options.parallel))
    except KeyboardInterrupt:
        print("no more customers are taken")


if __name__ == "__main__":
    main()
