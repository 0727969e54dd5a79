"""The router's recorded sessions: the calls of each join into one trajectory."""

import itertools
import json
import random
from collections import Counter
from typing import Any

from aiohttp import web

USER_TOKENS = [901, 902]
"""What stands between two answers: tokens that the policy did not sample."""


class FakeSessions:
    """Answers are `good` or `bad` by the seed of the call; each has three tokens."""

    def __init__(self, bus: Any) -> None:
        self.bus = bus
        self.open: dict[str, list[dict[str, Any]]] = {}
        self.metadata: list[dict[str, str]] = []
        self.keys: list[str] = []  # of episodes that were offered to agents outside
        self.finished: list[str] = []
        self.played_every: int | None = None  # of these sessions one is finished by its agent
        self._played: set[str] = set()
        self.scored: list[str] = []  # of those
        self.sampled = 0
        self.refused: Counter[str] = Counter()
        self._numbers = itertools.count()

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/sessions", self._make)
        app.router.add_post("/v1/sessions/{name}/finish", self._finish)
        app.router.add_get("/v1/sessions/{name}", self._read)
        app.router.add_delete("/v1/sessions/{name}", self._delete)

    def has(self, name: str) -> bool:
        return name in self.open

    def answer(self, name: str, body: dict[str, Any]) -> web.Response:
        if body["messages"][-1]["content"] == "fail":
            error = {"message": "no", "type": "BadRequestError", "param": None, "code": 400}
            self.refused[name] += 1
            return web.json_response({"error": error}, status=400)
        self.open[name].append(body)
        good = random.Random(body["seed"]).random() < 0.5
        self.sampled += 3
        tokens = [{"token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": []}] * 3
        return web.json_response(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": "good" if good else "bad"},
                        "logprobs": {"content": tokens} if body.get("logprobs") else None,
                    }
                ],
            }
        )

    async def _make(self, request: web.Request) -> web.Response:
        number = next(self._numbers)
        name = f"sess_{number}"
        self.open[name] = []
        if self.played_every is not None and number % self.played_every == 0:
            self.open[name].append({"seed": number})
            self._played.add(name)
        body = await request.json()
        self.metadata.append(body["metadata"])
        if "offer" in body:
            self.keys.append(body["offer"]["key"])
        return web.json_response(self._summary(name))

    async def _finish(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.finished.append(name)
        return web.json_response(self._summary(name))

    async def _read(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if request.query.get("count") == "0":
            return web.json_response(self._activity(name))
        assert name in self.finished, "nothing may come to it any more"
        calls = self.open.get(name)
        if calls is None:
            return web.json_response({"error": {"message": "gone"}}, status=404)
        one = [self._trajectory(calls)] if calls else []
        made = {"calls": {"first": len(calls)}}
        return web.json_response(self._summary(name) | made | {"trajectories": one})

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        del self.open[name]
        self.scored += [name] if name in self._played else []
        return web.Response(text=json.dumps({}))

    def _summary(self, name: str) -> dict[str, Any]:
        return {"id": name, "unrecorded_calls": self.refused[name]}

    def _activity(self, name: str) -> dict[str, Any]:
        calls = {"first": len(self.open[name])}
        figures = dict.fromkeys(("created", "tokens", "trajectory_count", "trajectory_tokens"), 0)
        played = name in self._played
        told: dict[str, Any] = {"metadata": {}, "cursor": None, "calls": calls}
        told |= {"state": "finished" if played else "open", "reward": 1.0 if played else None}
        return self._summary(name) | told | figures | {"open_calls": 0, "trajectories": []}

    def _trajectory(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        tokens, mask, turns = [], [], []
        for place, call in enumerate(calls):
            between = USER_TOKENS if place else []
            tokens += [*between, call["seed"] % 1000, place, 7]
            mask += [0] * len(between) + [1, 1, 1]
            turns.append((len(tokens), place + 1))
        name = self.bus.leased()[0]
        return {
            "prompt_token_ids": [1, 2],
            "response_token_ids": tokens,
            "behaviour_logprobs": [-0.5 * kept for kept in mask],
            "loss_mask": mask,
            "spans": [[self.bus.committed[name], 0, len(tokens), name]],
            "finish_reason": "stop",
            "text": "the last answer",
            "begun_by": "first",
            "calls": len(calls),
            "turns": turns,
            "shared_tokens": 0,
        }
