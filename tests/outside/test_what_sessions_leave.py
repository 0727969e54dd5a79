"""What sessions leave behind when they are over, and how the soak of agents outside judges it."""

import gc
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.soak.census import Census, Holding
from benchmarks.soak.outside import RULES
from services.protocol.session import SessionEnding, SessionOffer
from services.router.config import RouterConfig
from services.router.trajectories.history import History
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.trajectory_tree import RecordedCall, RecordedChoice

KEPT = 20
SESSIONS = 300


def call() -> RecordedCall:
    choice = RecordedChoice(
        token_ids=list(range(40)),
        logprobs=[-1.0] * 40,
        spans=[(1, 0, 40, "a")],
        finish_reason="stop",
        text="said",
    )
    return RecordedCall(prompt_token_ids=list(range(40)), choices=[choice], history=History([]))


async def play(sessions: Sessions, number: int) -> None:
    task = {"task_id": f"task {number}", "messages": [{"role": "user", "content": "go"}]}
    offer = SessionOffer(task=task, run="r", key=f"{number}", model="policy", max_tokens=40)
    session = (await sessions.create({"index": f"{number}"}, offer)).id
    await sessions.take("r")
    begun = await sessions.begin(session, router="router 1")
    assert begun is not None
    await sessions.end(session, begun.number, call())
    response = {"id": f"resp_{number}", "status": "completed", "output": [{"text": "said"}]}
    await sessions.keep_response(response, [{"content": "go"}], None)
    if number % 2:
        await sessions.finish(session, SessionEnding(reward=1.0))
    await sessions.delete(session)


async def test_sessions_that_are_over_leave_nothing_behind(tmp_path: Path) -> None:
    bounds = {"max_recorded_sessions": KEPT, "max_stored_responses": KEPT}
    sessions = Sessions(RouterConfig(sessions_dir=str(tmp_path), **bounds))
    for number in range(2 * KEPT):
        await play(sessions, number)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2 * KEPT, 2 * KEPT + SESSIONS):
            await play(sessions, number)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sessions.close()
    # The responses and names of the last ones have replaced those of the first.
    assert held < 2048 * KEPT, "a session that is kept has ten KiB"
    assert os.listdir(tmp_path) == ["lock"]


def verdict(rss_mib: list[float]) -> list[str]:
    """Of counts of one process, every ten seconds, ten sessions each second."""
    census = Census(dict, RULES)
    for at, rss in enumerate(rss_mib):
        seen = {"at_s": 10.0 * at, "age_s": 300.0 + 10 * at, "done": 100 * at}
        census.holdings.append(
            Holding(name="router", pid=1, began=0.0, rss_mib=rss, fds=50, threads=9, **seen)
        )
    return census.problems()


@pytest.mark.parametrize(
    ("kib_a_session", "leaks"), [(0.0, False), (1.0, False), (10.0, True), (40.0, True)]
)
def test_the_soak_finds_what_every_session_leaves_behind(kib_a_session: float, leaks: bool) -> None:
    noise = random.Random(0)
    kept = kib_a_session * 100 / 1024
    counts = [400.0 + at * kept + noise.uniform(-2.0, 2.0) for at in range(60)]
    assert bool(verdict(counts)) is leaks


def test_the_soak_does_not_take_a_warm_up_for_a_leak() -> None:
    filled = [400.0 + min(3.0 * at, 90.0) for at in range(60)]
    assert verdict(filled) == []


def test_a_soak_that_was_too_short_says_so() -> None:
    assert "growth is not judged" in verdict([400.0] * 9)[0]
