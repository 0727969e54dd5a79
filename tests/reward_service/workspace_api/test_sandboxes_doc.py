"""The blocks of docs/sandboxes.md, run as they stand there."""

import asyncio
import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import uvicorn

from services.protocol.reward.workspace_tests import GradeWorkspace
from services.reward_service.workspace_api.peer_listener import PREFIX
from services.side_by_side import running
from tests.reward_service.workspace_api.conftest import Replica, cluster, opened

PAGE = (Path(__file__).parents[3] / "docs" / "sandboxes.md").read_text(encoding="utf-8")
SERVICE = f"http://127.0.0.1:8000{PREFIX}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


class Mounted:
    """The application below its route, as Serve mounts it."""

    def __init__(self, replica: Replica) -> None:
        self._app = replica.http._transport.app  # type: ignore[attr-defined]

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await self._app({**scope, "root_path": PREFIX}, receive, send)


async def said(command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, command
    return out.decode()


async def test_the_session_of_the_page_goes_as_it_says() -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (block,) = blocks("bash")
    first, *calls = block.splitlines()
    async with cluster() as made:
        app = Mounted(await made.start())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(app, lifespan="off", log_level="error")
            server = uvicorn.Server(config)
            async with running(server.serve(sockets=[listener]), name="server"):
                here = f"http://127.0.0.1:{listener.getsockname()[1]}{PREFIX}"
                opened_as = json.loads(await said(first.replace(SERVICE, here)))["id"]
                theirs = f"{here}/{opened_as}"
                answers = [await said(call.replace(f"{SERVICE}/ID", theirs)) for call in calls]
                server.should_exit = True
    put, got, listed, forked, closed = answers
    assert json.loads(put) == {"path": "out/note.txt", "bytes": 8}
    assert got == "two rows"
    assert [one["path"] for one in json.loads(listed)] == ["data.csv", "out"]
    assert len({one["id"] for one in json.loads(forked)} - {opened_as}) == 2
    assert json.loads(closed)["reason"] == "closed"


async def test_the_tests_of_the_page_grade() -> None:
    by_tests, by_file = (json.loads(one) for one in blocks("json")[:2])
    GradeWorkspace.from_data(by_file, source="grade")
    by_tests["files"] = {"check.py": "print('all 7 right')"}
    async with cluster() as made:
        replica = await made.start()
        main = "print(sum(map(int, input().split())))"
        path = await opened(replica.http, files={"main.py": main})
        score = (await replica.http.post(f"{path}/grade", json=by_tests)).json()
    assert (score["verdict"], score["reward"], score["passed"]) == ("accepted", 1.0, 2)


@pytest.mark.parametrize("error", re.findall(r"^\| \d+[^|]* \| ([^|]+) \|", PAGE, re.M))
def test_an_error_of_the_page_is_named_in_the_code(error: str) -> None:
    code = Path(__file__).parents[3] / "services"
    places = ("reward_service/workspace_api/error_answers.py", "http/error_answer.py")
    text = "".join((code / place).read_text() for place in places)
    for name in re.findall(r"`(\w+)`", error):
        assert f'"{name}"' in text
