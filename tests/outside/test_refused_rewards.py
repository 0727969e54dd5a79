"""A reward that no session takes is counted by why, and changes nothing."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from services.observability.metrics import RouterMetrics
from services.protocol.session import SessionEnding
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.trajectories.sessions import Sessions
from tests.outside.conftest import request, sampler
from tests.outside.test_outside_agents import chat, end, take
from tests.router.conftest import Cluster

NO_SESSION = "sess_0123456789abcdef0123456789abcdef"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    counter = RouterMetrics.rewards_refused
    monkeypatch.setattr(counter, "inc", lambda tags: counted.update([tags["reason"]]))
    return counted


async def make(cluster: Cluster) -> str:
    return str((await cluster.http.post(f"{cluster.url}/v1/sessions", json={})).json()["id"])


async def reward(cluster: Cluster, session: str, **how: Any) -> int:
    url = f"{cluster.url}/v1/sessions/{session}/rewards"
    return (await cluster.http.post(url, **{"json": {"reward": 1}, **how})).status_code


async def test_a_reward_is_late_after_the_end_and_twice_after_another(cluster, refused):
    graded, ungraded = await make(cluster), await make(cluster)
    assert await end(cluster, graded, reward=1) == 200
    assert await end(cluster, ungraded) == 200
    assert await end(cluster, graded, reward=1) == 200, "the same, told again"
    assert await end(cluster, graded, failure="or rather not") == 409
    assert not refused, "neither was a reward"
    assert await end(cluster, graded, reward=2) == 409
    assert refused == {"twice": 1}
    assert await reward(cluster, graded) == await end(cluster, ungraded, reward=2) == 409
    assert refused == {"twice": 1, "late": 2}


async def test_a_reward_for_a_session_that_the_run_has_read_is_late_or_twice(cluster, refused):
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *one: None))
        session = (await take(cluster))["session"]["id"]
        await chat(cluster, session, "hi")
        await end(cluster, session, reward=1)
        await sampling
    assert await end(cluster, session, reward=5) == await reward(cluster, session) == 404
    assert refused == {"twice": 1, "late": 1}


async def test_sessions_that_are_gone_are_remembered_up_to_a_bound(refused):
    sessions = Sessions(RouterConfig(max_recorded_sessions=2))
    names = [(await sessions.create({})).id for _ in range(3)]  # the first has been dropped
    for name in names[1:]:
        await sessions.delete(name)
    with pytest.raises(RequestFailed):
        await sessions.finish(names[0], SessionEnding(reward=1.0))
    with pytest.raises(RequestFailed):
        await sessions.finish(names[2], SessionEnding(text="an answer"))
    assert refused == {"unknown_session": 1, "late": 1}


@pytest.mark.parametrize("wrong", ["NaN", '"1.5"', '"a lot"', "Infinity", "true", "{"])
async def test_a_reward_that_is_no_number_is_invalid(cluster, refused, wrong):
    session = await make(cluster)
    assert await reward(cluster, session, json=None, content=f'{{"reward": {wrong}}}') == 400
    assert refused == {"invalid": 1}


async def test_a_reward_for_a_session_that_never_was_is_counted(cluster, refused):
    assert await reward(cluster, NO_SESSION) == 404
    assert refused == {"unknown_session": 1}


@pytest.mark.parametrize("keys", [False, True], ids=["without API keys", "with API keys"])
async def test_a_reward_with_the_key_of_another_session_is_refused(tmp_path, refused, keys):
    file = tmp_path / "keys.yaml"
    file.write_text("- {name: alice, key: a-key-of-alices-own}\n")
    cluster = Cluster()
    await cluster.start(access={"api_keys_file": str(file)} if keys else {})
    try:
        cluster.http.headers["authorization"] = "Bearer a-key-of-alices-own"
        mine, other = await make(cluster), await make(cluster)
        cluster.http.headers["authorization"] = f"Bearer {mine}"
        expected = 401 if keys else 403
        assert await reward(cluster, other) == await end(cluster, other, reward=1) == expected
        assert refused == {"other_session": 2}
        assert await reward(cluster, mine) == await end(cluster, mine, reward=1) == 200
    finally:
        await cluster.close()
