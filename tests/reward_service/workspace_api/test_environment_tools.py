"""The sandbox of environments against the real API and real jails."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.orchestrator.rollout.sandbox import sandbox, sandboxes_at
from services.reward_service.workspaces.running import programs
from services.workspaces.client import WorkspaceFailed
from services.workspaces.tools import ToolLimits
from tests.orchestrator.coder import asked, reply
from tests.reward_service.workspace_api.conftest import Replica, cluster

BASE = "http://x"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica() -> AsyncIterator[Replica]:
    async with cluster() as made:
        yield await made.start(per_key=2, max_request_mb=4)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_episode_uses_its_tools_and_is_graded_by_tests_that_it_has_not_seen(
    replica: Replica,
) -> None:
    double = "print(int(input()) * 2)\n"
    tests = [
        {"argv": ["python3", "double.py"], "stdin": f"{number}\n", "expected": f"{2 * number}\n"}
        for number in (1, 21, 300)
    ]
    with sandboxes_at(replica.http, BASE, timeout_s=60):
        async with sandbox(
            files={"a.txt": "one\n"}, tools=("python", "bash", "write", "list")
        ) as box:
            assert [tool["function"]["name"] for tool in box.tools] == [
                *("python", "bash", "write", "list")
            ]
            assert (await box.python("x = 20 + 1\nx")).result == "21"
            assert await box.use("python", {"code": "print(x * 2)"}) == "42"
            assert await box.use("bash", '{"command": "cat a.txt; exit 3"}') == (
                "one\n[exit status 3]"
            )
            assert "there are: python, bash, write, list" in await box.use("read", {"path": "a"})
            _, wrote, listed = await box.call(
                reply(
                    asked("write", '{"path": "double.py", "content": "print(1)"}'),
                    asked("list", "{}", 1),
                )
            )
            assert wrote["content"] == "wrote 8 bytes to double.py"
            assert "double.py" in listed["content"]
            assert await box.read("double.py") == "print(1)"
            assert await box.read("nothing.py") is None
            assert not await box.write("a.txt/b", "c")
            assert await box.grade(tests=tests, close=False) == 0.0
            assert await box.write("double.py", double)
            assert await box.grade(tests=tests, policy="fraction") == 1.0
            assert box.score["verdict"] == "accepted"
    assert not replica.workspaces.of("")


@pytest.mark.asyncio(loop_scope="module")
async def test_limits_and_mistakes_are_text_for_the_model(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sandboxes_at(replica.http, BASE, timeout_s=60):
        async with sandbox(limits=ToolLimits(wall_s=2.0, max_chars=100)) as box:
            assert "[time_limit: " in await box.use("bash", {"command": "sleep 60"})
            endless = await box.use("python", {"code": "while True: print('x' * 1000)"})
            assert "[output_limit" in endless or "[time_limit" in endless
            assert len(endless) < 600
            assert "ZeroDivisionError" in await box.use("python", {"code": "1 / 0"})
            long = {"command": "true " + "x" * 300_000}
            assert await box.use("bash", long) == "bash: Argument list too long\n[exit status 126]"
            monkeypatch.setattr(programs, "_MAX_COMMAND", 1000)
            assert "error: argv" in await box.use("bash", long)
            assert "argv" in ((await box.bash(long["command"])).traceback or "")
            assert "error: " in await box.use("read", {"path": "a.txt"})
            assert "error: " in await box.use("write", {"path": "a", "content": "x" * (5 << 20)})
            assert (await box.python("import os; os.kill(os.getpid(), 9)")).interpreter_restarted


@pytest.mark.asyncio(loop_scope="module")
async def test_a_place_for_a_workspace_is_waited_for_as_long_as_the_episode_has(
    replica: Replica,
) -> None:
    with sandboxes_at(replica.http, BASE, timeout_s=60):
        async with sandbox() as first, sandbox():
            waiting = asyncio.create_task(_one_call())
            done, _ = await asyncio.wait([waiting], timeout=0.5)
            assert not done
            assert (await first.python("1")).result == "1"
        assert await waiting == "2"
    with sandboxes_at(replica.http, BASE, timeout_s=0.0):
        async with sandbox(), sandbox():
            with pytest.raises(WorkspaceFailed) as caught:
                async with sandbox():
                    pass
            assert caught.value.reason == "workspace_full"


async def _one_call() -> str | None:
    async with sandbox() as box:
        return (await box.python("1 + 1")).result


@pytest.mark.asyncio(loop_scope="module")
async def test_a_workspace_that_ends_under_an_episode_is_lost(replica: Replica) -> None:
    with sandboxes_at(replica.http, BASE, timeout_s=60):
        async with sandbox() as box:
            (open_one,) = replica.workspaces.of("")
            await open_one.close("lost")
            with pytest.raises(WorkspaceFailed) as caught:
                await box.use("python", {"code": "1"})
            assert caught.value.reason == "workspace_lost"
        with pytest.raises(WorkspaceFailed) as caught:
            async with sandbox(memory_mb=60000):
                pass
        assert caught.value.reason == "workspace_refused"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_workspace_that_its_model_filled_up_is_graded_as_0(replica: Replica) -> None:
    with sandboxes_at(replica.http, BASE, timeout_s=60):
        async with sandbox() as box:
            (open_one,) = replica.workspaces.of("")
            await open_one.close("memory")
            assert "workspace" in await box.use("python", {"code": "1"})
            assert (await box.python("1")).status == "memory_limit"
            tests = [{"argv": ["true"], "expected": ""}]
            assert await box.grade(tests=tests) == 0.0
            assert box.score["verdict"] == "memory_limit"
