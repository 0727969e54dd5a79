"""`millrace agent-run` while its router is away, refuses, or is none."""

import io
import json
import os
import signal
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from millrace_tools.agents import command
from millrace_tools.agents.command import Runner
from millrace_tools.agents.work import Offers
from services.protocol.errors import InvalidInput

Answer = Callable[[], httpx.Response]
TASK = {"task_id": "t", "messages": [{"role": "user", "content": "Say it."}]}


def refused() -> httpx.Response:
    raise httpx.ConnectError("nothing listens")


def broken_off() -> httpx.Response:
    raise httpx.ReadError("it was killed meanwhile")


def failed() -> httpx.Response:
    return httpx.Response(503, text="starting")


def unknown() -> httpx.Response:
    return httpx.Response(404)


def fine() -> httpx.Response:
    return httpx.Response(200, json={})


def offer(session: str) -> Answer:
    taken = {"session": {"id": session}, "task": TASK, "model": "m"}
    return lambda: httpx.Response(200, json=taken)


class Router:
    """Answers in turn; the last answer of a kind is repeated.

    Attributes:
        told: how sessions ended, as `finish` says.
    """

    def __init__(self, takes: list[Answer], finishes: list[Answer]) -> None:
        self._left = {"take": takes, "finish": finishes}
        self.told: list[dict[str, str]] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        kind = request.url.path.rpartition("/")[2]
        left = self._left[kind]
        answered = (left.pop(0) if len(left) > 1 else left[0])()
        if kind == "finish" and answered.status_code == httpx.codes.OK:
            self.told.append(json.loads(request.content))
        return answered


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_PAUSE_S", 0.0)


def runner_of(
    router: Router, folder: Path, *program: str, url: str = "http://127.0.0.1:1", **options: object
) -> tuple[Runner, io.StringIO]:
    """A runner of the command, and what it prints."""
    given = {"parallel": 1, "episodes": 1, "idle": None, "timeout": 600.0, "container_url": None}
    arguments = Namespace(
        **given | options, url=url, logs=folder / "logs", program=program or ("true",)
    )
    http = httpx.Client(base_url=url, transport=httpx.MockTransport(router.answer))
    written = io.StringIO()
    return Runner(arguments, Offers(http, url, None), Console(file=written), None), written


def test_a_router_that_is_away_for_a_while_costs_no_episode(tmp_path: Path) -> None:
    router = Router(
        [failed, offer("one"), refused, unknown, failed, offer("two")],
        [refused, broken_off, unknown, failed, fine],
    )
    runner, written = runner_of(router, tmp_path, episodes=2)
    runner.run()
    assert runner.summary() == "episodes: 2 finished"
    assert router.told == [{}, {}]
    assert "one: the router at http://127.0.0.1:1 is away; reporting its end again" in (
        written.getvalue()
    )


def test_a_connection_refused_at_the_first_call_is_an_error_of_the_url(tmp_path: Path) -> None:
    runner, _ = runner_of(Router([refused], [fine]), tmp_path, parallel=4, episodes=None)
    with pytest.raises(InvalidInput, match="Nothing answers there"):
        runner.run()


def test_a_server_that_is_no_router_is_named(tmp_path: Path) -> None:
    runner, _ = runner_of(Router([unknown], [fine]), tmp_path, parallel=4, episodes=None)
    with pytest.raises(InvalidInput, match="/v1/sessions/take: is the router deployed"):
        runner.run()


def test_a_session_that_the_router_has_no_more_was_ended_elsewhere(tmp_path: Path) -> None:
    def gone() -> httpx.Response:
        return httpx.Response(404, json={"error": {"type": "session_not_found"}})

    runner, _ = runner_of(Router([offer("one"), offer("two")], [gone]), tmp_path)
    runner.run()
    assert runner.summary() == "episodes: 1 ended elsewhere"


def test_an_end_that_no_router_hears_in_time_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_REPORT_S", 0.0)
    runner, written = runner_of(Router([offer("one"), offer("two")], [refused]), tmp_path)
    runner.run()
    assert runner.summary() == "episodes: 1 not reported"
    assert "its end is not reported" in written.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_ended_waits_for_no_router(tmp_path: Path, number: int) -> None:
    once = [number]

    def ended() -> httpx.Response:
        if once:
            os.kill(os.getpid(), once.pop())
        return refused()

    runner, _ = runner_of(Router([offer("one")], [ended]), tmp_path, episodes=None)
    before = signal.signal(number, signal.SIG_DFL)  # a shell's background jobs ignore SIGINT
    try:
        with runner.ended_by_signals():
            runner.run()
    finally:
        signal.signal(number, before)
    assert runner.signal == number
    assert runner.summary().endswith("1 not reported")


def test_a_worker_that_cannot_go_on_ends_the_command_and_its_programs(tmp_path: Path) -> None:
    def broken() -> httpx.Response:
        raise RuntimeError("a defect")

    router = Router([offer("one"), broken], [fine])
    runner, _ = runner_of(router, tmp_path, "sleep", "999", parallel=2, episodes=None)
    with pytest.raises(RuntimeError, match="a defect"):
        runner.run()
    assert runner.summary() == "episodes: 1 failed"
    assert router.told == [{"failure": "agent-run was ended"}]
