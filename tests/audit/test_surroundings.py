"""Failures around an episode: the network, programs, graders."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.audit.test_audit import ROWS, audited, row

CHECKS = ["reward.network", "reward.programs", "reward.grader"]


async def audit_here(folder: Path, environment: str | None, rows: Any, **options: Any) -> Any:
    given = {"only": CHECKS, "tasks": 4} | options
    return await asyncio.to_thread(audited, folder, environment, rows, **given)


@asynccontextmanager
async def knowing() -> AsyncIterator[str]:
    """A server that answers with the last part of the path."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.match_info["said"])

    app = web.Application()
    app.router.add_get("/{said}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


@pytest.mark.parametrize(
    ("name", "verdict"), [("needs_others", "pass"), ("pays_lost_others", "fail")]
)
async def test_a_server_that_is_away_and_a_tool_that_dies_are_no_reward(
    tmp_path: Path, name: str, verdict: str
) -> None:
    async with knowing() as url:
        rows = [row(number, url=url) for number in range(4)]
        _, found, said = await audit_here(tmp_path, name, rows)
    assert found["reward.network"]["verdict"] == verdict, said
    assert found["reward.programs"]["verdict"] == verdict, said
    assert found["reward.grader"]["verdict"] == "not measured"
    if verdict == "fail":
        assert ": 1, then 0" in found["reward.network"]["evidence"]
        assert ": 1, then 0" in found["reward.programs"]["evidence"]


GRADERS = """
import urllib.request
from services.reward_service.graders.user_graders import grader

@grader("knows")
def knows(completion, answer, url):
    try:
        with urllib.request.urlopen(url + answer) as reply:
            return float(reply.read().decode() == completion)
    except OSError:
        return 0.0
"""


async def test_a_grader_that_fails_is_no_reward_if_it_has_a_reference(tmp_path: Path) -> None:
    (tmp_path / "own_grader.py").write_text(GRADERS)
    deployment = deployment_of(tmp_path, {"grader_modules": ["own_grader"]})
    async with knowing() as url:
        rows = [
            one
            | {
                "grader": {
                    "kind": "python",
                    "name": "knows",
                    "arguments": {"answer": one["data"]["answer"], "url": url},
                    "reference": one["data"]["answer"] if number != 2 else None,
                }
            }
            for number, one in enumerate(ROWS[:4])
        ]
        _, found, said = await audit_here(tmp_path, None, rows, deployment=deployment)
    # It takes a server that is away for a wrong answer.
    assert "room-0: 1, then 0, room-1: 1, then 0" in found["reward.network"]["evidence"], said
    assert found["reward.grader"]["verdict"] == "fail"
    paid = "room-2, whose grader raised: 0, room-2, whose grader hung: 0;"
    assert f"a failure became a reward: {paid}" in found["reward.grader"]["evidence"]


async def test_an_endpoint_that_is_away_or_never_answers_is_no_reward(tmp_path: Path) -> None:
    async def grade(request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response({"reward": float(asked["completion"] == asked["arguments"]["is"])})

    app = web.Application()
    app.router.add_post("/", grade)
    async with TestServer(app) as server:
        arguments = {"http_graders": {"knows": str(server.make_url("/"))}}
        rows = [
            one
            | {
                "grader": {
                    "kind": "http",
                    "name": "knows",
                    "arguments": {"is": one["data"]["answer"]},
                }
            }
            for one in ROWS[:4]
        ]
        deployment = deployment_of(tmp_path, arguments)
        _, found, said = await audit_here(tmp_path, None, rows, deployment=deployment)
    assert found["reward.grader"]["verdict"] == "pass", said
    assert found["reward.grader"]["evidence"] == "4 raised and 4 hung, and have no reward"
    assert found["reward.network"]["verdict"] == "pass", said


def deployment_of(folder: Path, arguments: dict[str, Any]) -> Path:
    """A deployment file whose reward service has these arguments, and this folder's modules."""
    service = {
        "name": "reward_service",
        "import_path": "services.reward_service.app:build",
        "args": arguments,
        "runtime_env": {"env_vars": {"PYTHONPATH": str(folder)}},
    }
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump({"applications": [service]}))
    return path


AGENT = """
import json, os, pathlib, urllib.request
from openai import OpenAI
task = json.loads(pathlib.Path(os.environ["MILLRACE_TASK"]).read_text())
said = OpenAI(max_retries=0).chat.completions.create(model="m", messages=task["messages"])
try:
    urllib.request.urlopen("http://weather.example/now")
    reward = 1.0
except OSError:
    reward = 0.0
pathlib.Path(os.environ["MILLRACE_RESULT"]).write_text(json.dumps({"reward": reward}))
"""


async def test_an_agent_without_network_is_told_from_one_that_needs_none(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    _, found, said = await audit_here(
        tmp_path, "external", ROWS, tasks=1, agent=f"{sys.executable} {program}"
    )
    assert found["reward.network"]["verdict"] == "warn", said
    assert "1 connections were refused" in found["reward.network"]["evidence"]
