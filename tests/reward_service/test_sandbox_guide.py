"""Every block of docs/give-your-agent-a-sandbox.md, run as it stands there."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
import yaml

from services.orchestrator.rollout.sandbox import sandboxes_at
from services.protocol.run.task import Task
from services.reward_service.workspace_api.grading import Grading
from services.reward_service.workspace_api.http_api import http_api
from services.reward_service.workspace_api.service import WorkspaceService
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "give-your-agent-a-sandbox.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##+ |\Z)", PAGE, re.M | re.S))
SERVICE, PREFIX = "http://127.0.0.1:8000", "/v1/sandboxes"
LIMIT_S = 300.0


def _blocks(section: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", SECTIONS[section], re.M | re.S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    """The service below its path, on a port that is free."""
    config = WorkspacesConfig(shared_user=True)
    workspaces = Workspaces(config, "guide")
    await workspaces.start()
    grading = Grading(workspaces, SimpleNamespace(), config)
    api = http_api(WorkspaceService(config=config, workspaces=workspaces, grading=grading))

    async def below_prefix(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].removeprefix(PREFIX)}
        await api(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(below_prefix, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield "http://{}:{}".format(*listener.getsockname())
        server.should_exit = True
        await serving
    await workspaces.aclose()


async def _said(*command: str) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = asyncio.subprocess.PIPE
    done = await asyncio.create_subprocess_exec(*command, stdout=pipe, cwd=ROOT, env=env)
    said, _ = await asyncio.wait_for(done.communicate(), LIMIT_S)
    assert done.returncode == 0, said
    return said.decode()


async def test_the_commands_of_the_page_open_use_and_close_a_workspace(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    opening, cells, program = (text.replace(SERVICE, url) for text in _blocks("Over HTTP", "bash"))
    opened = json.loads(await _said("bash", "-c", opening))
    export = f"export ID={opened['id']}\n"
    results = _json_values(await _said("bash", "-c", export + cells))
    assert [one["result"] for one in results] == ["[1, 2, 3]", "6"]
    assert {one["status"] for one in results} == {"ok"}
    ran = await _said("bash", "-c", export + program)
    first, rest = json.JSONDecoder().raw_decode(ran), "1\n2\n3\n"
    assert (first[0]["status"], first[0]["stdout"]) == ("ok", "3 sorted.txt\n")
    assert ran[first[1] :].startswith(rest)
    closed = json.loads(ran[first[1] + len(rest) :])
    assert closed["reason"] == "closed"
    async with httpx.AsyncClient(trust_env=False) as http:
        gone = await http.get(f"{url}{PREFIX}/{opened['id']}")
    assert gone.status_code == 410


async def test_the_application_of_the_page_is_one() -> None:
    (text,) = _blocks("Start it", "yaml")
    (sandboxes,) = yaml.safe_load(text)["applications"]
    assert sandboxes["route_prefix"] == PREFIX
    WorkspacesConfig.model_validate(sandboxes["args"])


async def test_the_client_of_the_page_prints_what_its_program_found(url: str) -> None:
    (program,) = _blocks("From a Python program", "python")
    said = await _said(sys.executable, "-c", program.replace(SERVICE, url))
    assert said == "ok 6 1\n2\n3\n\n"


@pytest.mark.parametrize(("wrote", "reward"), [("2 * int(input())", 1.0), ("7", 0.0)])
async def test_the_environment_of_the_page_grades_what_the_model_wrote(
    url: str, wrote: str, reward: float
) -> None:
    (source,) = _blocks("In an environment", "python")
    scope: dict[str, Any] = {}
    exec(source, scope)
    tests = [{"argv": ["python3", "answer.py"], "stdin": "4\n", "expected": "8\n"}]
    row = {"task_id": "t", "split": "train", "messages": [{"role": "user", "content": "Double it"}]}
    task = Task.model_validate(row | {"data": {"tests": tests, "files": {"note.txt": "4"}}})
    model = Model(("write", {"path": "answer.py", "content": f"print({wrote})"}))
    async with httpx.AsyncClient(trust_env=False, timeout=None) as http:
        with sandboxes_at(http, url, timeout_s=60):
            assert await scope["rollout"](model, task) == reward
    assert model.turns == 2


class Model:
    """Calls one tool, and then says that it is done."""

    def __init__(self, call: tuple[str, dict[str, Any]]) -> None:
        self._call, self.turns = call, 0
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, tools: list[Any], **_: object) -> SimpleNamespace:
        self.turns += 1
        name, arguments = self._call
        assert name in [one["function"]["name"] for one in tools]
        function = SimpleNamespace(name=name, arguments=json.dumps(arguments))
        calls = [SimpleNamespace(id="c", type="function", function=function)]
        message = SimpleNamespace(
            content="done",
            tool_calls=calls if self.turns == 1 else None,
            model_dump=lambda **_: {"role": "assistant", "content": "done"},
        )
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def _json_values(text: str) -> list[Any]:
    """JSON values that stand one after the other."""
    found = []
    while text := text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        found.append(value)
        text = text[end:]
    return found
