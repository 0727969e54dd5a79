"""Browsers that follow a run: many at once, those that leave, and a run that goes away."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from services.page.change_stream import ChangeStream
from services.page.http_app import page_app
from services.page.reading.run_folder import RunFolder
from services.page.run_store import FolderRunStore
from tests.page.made_run import add_step

MANY = 200


class Browser:
    """One stream, read as a server reads it; it goes on until `leave`."""

    def __init__(self, changes: ChangeStream, run: RunFolder) -> None:
        self.status, self.text = 0, ""
        self._left, self._news = asyncio.Event(), asyncio.Event()
        self.ended = asyncio.create_task(self._served(changes, run))

    async def _served(self, changes: ChangeStream, run: RunFolder) -> None:
        await changes.response(run)({"type": "http"}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()
        self._news.set()

    async def reads(self, wanted: Callable[[str], bool]) -> None:
        async with asyncio.timeout(300):
            while not wanted(self.text):
                self._news.clear()
                await self._news.wait()

    async def leave(self) -> None:
        self._left.set()
        async with asyncio.timeout(300):
            await self.ended


def changes_in(text: str) -> int:
    return text.count("event: change")


@contextlib.contextmanager
def counted(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    looks: list[None] = []
    look = run.revision
    monkeypatch.setattr(run, "revision", lambda: (looks.append(None), look())[1])
    yield looks


async def test_two_hundred_browsers_are_told_by_one_look_and_one_more_is_refused(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, changes = RunFolder(run_dir), ChangeStream(look_s=0.05, most=MANY)
    with counted(run, monkeypatch) as looks:
        everybody = [Browser(changes, run) for _ in range(MANY)]
        one_more = Browser(changes, run)
        await one_more.ended
        for one in everybody:
            await one.reads(lambda text: changes_in(text) == 1)
        assert one_more.status == 503
        assert '"param":"events"' in one_more.text
        before = len(looks)
        add_step(run_dir, 5)
        for one in everybody:
            await one.reads(lambda text: changes_in(text) > 1)
        assert len(looks) - before < MANY
    await asyncio.gather(*(one.leave() for one in everybody))
    assert (changes.open, changes.watched) == (0, 0)


async def test_a_browser_that_leaves_leaves_nothing_behind(run_dir: Path) -> None:
    run, changes = RunFolder(run_dir), ChangeStream(look_s=0.01, beat_s=0.01)
    before = asyncio.all_tasks()
    stays, leaves = Browser(changes, run), Browser(changes, run)
    await leaves.reads(lambda text: ": still here" in text)
    await leaves.leave()
    assert (changes.open, changes.watched) == (1, 1)
    seen = len(stays.text)
    await stays.reads(lambda text: len(text) > seen)
    await stays.leave()
    async with asyncio.timeout(300):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110  (announced to nobody)
            await asyncio.sleep(0)
    assert (changes.open, changes.watched) == (0, 0)


async def test_a_run_that_is_removed_ends_its_streams_and_is_named(run_dir: Path) -> None:
    store, changes = FolderRunStore(run_dir), ChangeStream(look_s=0.01)
    browser = Browser(changes, store.open("test-1"))
    await browser.reads(lambda text: changes_in(text) == 1)
    shutil.rmtree(run_dir)
    async with asyncio.timeout(300):
        await browser.ended
    assert browser.text.endswith("event: gone\ndata: null\n\n")
    for path in ("", "/curves", "/groups", "/trajectories/0", "/events"):
        answer = TestClient(page_app(store)).get(f"/api/runs/test-1{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["fix"] == "Its directory is not there any more."


async def test_a_look_that_fails_ends_the_stream_with_its_error(run_dir: Path, monkeypatch) -> None:
    run, changes = RunFolder(run_dir), ChangeStream(look_s=0.01)
    browser = Browser(changes, run)
    await browser.reads(lambda text: changes_in(text) == 1)

    def fails() -> None:
        raise RuntimeError("the look fails")

    monkeypatch.setattr(run, "revision", fails)
    with pytest.raises(BaseException) as error:
        await asyncio.wait_for(browser.ended, 300)
    assert "the look fails" in repr(error.value)
    assert (changes.open, changes.watched) == (0, 0)
