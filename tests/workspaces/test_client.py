"""A workspace over HTTP: what is tried again, what is whose mistake, what every end is named."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import OpenWorkspace, PythonCall
from services.workspaces.client import (
    RemoteWorkspace,
    SandboxService,
    WorkspaceFailed,
    WorkspaceOverLimit,
)
from tests.workspaces.fake_sandboxes import FakeSandboxes, fake_sandboxes

LONG_S = 120.0
CELL = PythonCall(code="print(6 * 7)")


@asynccontextmanager
async def service(url: str, *, timeout_s: float = LONG_S) -> AsyncIterator[SandboxService]:
    async with httpx.AsyncClient(trust_env=False) as http:
        deadline = time.monotonic() + timeout_s
        headers = {"authorization": "Bearer key"}
        yield SandboxService(http=http, url=url, headers=headers, deadline=deadline)


@asynccontextmanager
async def opened(**spec: Any) -> AsyncIterator[tuple[FakeSandboxes, RemoteWorkspace]]:
    async with fake_sandboxes() as fake, service(fake.url) as here:
        yield fake, await RemoteWorkspace.open(here, OpenWorkspace(**spec))


async def test_a_workspace_is_opened_used_and_closed() -> None:
    async with opened(files={"a.txt": "one"}) as (fake, workspace):
        assert (await workspace.python(CELL)).stdout == "42\n"
        assert await workspace.read("a.txt", max_bytes=10) == b"one"
        await workspace.write("folder/ä ?#%.txt", b"\xff")
        assert await workspace.read("folder/ä ?#%.txt", max_bytes=1) == b"\xff"
        assert [one.path for one in await workspace.list(".")] == ["a.txt", "folder/ä ?#%.txt"]
        assert (await workspace.grade({"tests": []}))["reward"] == 1.0
        await workspace.close()
        assert not fake.open
        assert {key for *_, key, _ in fake.asked} == {"Bearer key"}


async def test_what_was_not_begun_is_tried_again_until_it_is() -> None:
    async with fake_sandboxes() as fake, service(fake.url) as here:
        fake.failures = [
            (429, {"message": "all places are taken"}),
            (503, {"message": "starting"}),
            (502, {"message": "no replica"}),
        ]
        workspace = await RemoteWorkspace.open(here, OpenWorkspace())
        fake.failures = [(429, {"message": "later"})]
        assert (await workspace.python(CELL)).stdout == "42\n"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ((429, {"message": "all places are taken"}), "workspace_full"),
        ((503, {"message": "no jail"}), "workspace_unavailable"),
        ((401, {"message": "no such key"}), "workspace_refused"),
        ((400, {"param": "network.0", "value": "x", "fix": "No."}), "workspace_refused"),
        ((500, {"message": "bug"}), "workspace_unavailable"),
    ],
)
async def test_a_workspace_that_cannot_be_had_has_a_reason(failure: tuple, reason: str) -> None:
    async with fake_sandboxes() as fake, service(fake.url, timeout_s=0.0) as here:
        fake.failures = [failure]
        with pytest.raises(WorkspaceFailed) as caught:
            await RemoteWorkspace.open(here, OpenWorkspace())
        assert caught.value.reason == reason


async def test_a_service_that_is_not_there_is_unavailable() -> None:
    async with fake_sandboxes() as fake:
        url = fake.url
    async with service(url, timeout_s=0.0) as here:
        with pytest.raises(WorkspaceFailed) as caught:
            await RemoteWorkspace.open(here, OpenWorkspace())
        assert caught.value.reason == "workspace_unavailable"


@pytest.mark.parametrize("reason", ["closed", "idle", "total", "lost", "shutdown", "other"])
async def test_a_workspace_that_is_gone_is_lost(reason: str) -> None:
    async with opened() as (fake, workspace):
        fake.failures = [(410, {"message": "gone", "reason": reason})]
        with pytest.raises(WorkspaceFailed) as caught:
            await workspace.python(CELL)
        assert caught.value.reason == "workspace_lost"


@pytest.mark.parametrize("reason", ["memory", "disk"])
async def test_a_workspace_that_its_programs_filled_up_is_their_doing(reason: str) -> None:
    async with opened() as (fake, workspace):
        fake.failures = [(410, {"message": "gone", "reason": reason})]
        with pytest.raises(WorkspaceOverLimit):
            await workspace.python(CELL)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_code_that_may_have_been_begun_is_not_run_again(status: int) -> None:
    async with opened() as (fake, workspace):
        fake.failures = [(status, {"message": "it broke", "type": "not_ready"})]
        with pytest.raises(WorkspaceFailed) as caught:
            await workspace.python(CELL)
        assert caught.value.reason == "workspace_unavailable"
        assert sum(path.endswith("/python") for _, path, *_ in fake.asked) == 1


async def test_what_changes_nothing_the_second_time_is_made_again() -> None:
    async with opened(files={"a": "1"}) as (fake, workspace):
        fake.failures = [(503, {"message": "away"}), (502, {"message": "away"})]
        assert await workspace.read("a", max_bytes=9) == b"1"
        fake.failures = [(503, {"message": "no process", "type": "workspace_fault"})]
        assert (await workspace.python(CELL)).stdout == "42\n"


async def test_a_workspace_that_the_service_does_not_know_any_more_is_lost() -> None:
    async with opened() as (fake, workspace):
        unknown = {"message": "none", "param": "id", "value": workspace.id, "fix": "Open one."}
        fake.failures = [(404, unknown)]
        with pytest.raises(WorkspaceFailed) as caught:
            await workspace.read("a", max_bytes=9)
        assert caught.value.reason == "workspace_lost"


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "a/../../b", "a\0b", "a" * 300])
async def test_a_path_that_leaves_the_workspace_is_never_sent(path: str) -> None:
    async with opened() as (fake, workspace):
        before = len(fake.asked)
        with pytest.raises(InvalidInput):
            await workspace.read(path, max_bytes=9)
        with pytest.raises(InvalidInput):
            await workspace.write(path, b"")
        assert len(fake.asked) == before


async def test_a_file_that_is_not_there_or_too_large_is_the_callers_mistake() -> None:
    async with opened(files={"a": "x" * 100}) as (_, workspace):
        with pytest.raises(InvalidInput, match="no such file"):
            await workspace.read("b", max_bytes=9)
        with pytest.raises(InvalidInput, match="100 bytes"):
            await workspace.read("a", max_bytes=9)


async def test_closing_never_waits_for_a_service_that_is_away() -> None:
    async with opened() as (fake, workspace):
        fake.failures = [(503, {"message": "restarting"})]
        await workspace.close()
        assert [path for method, path, *_ in fake.asked if method == "DELETE"] == ["/one-0"]
