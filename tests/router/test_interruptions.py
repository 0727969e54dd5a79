"""Answers that are stopped on purpose go on under newer weights, and nobody sees a cut."""

import asyncio

import pytest

from tests.router.conftest import logprob_of
from tests.router.test_failover import ASK, EVERY_POSITION, _streamed, _whole

SESSION = {"x-session-id": "run-1-7"}


async def interrupt(cluster, min_version, session=SESSION["x-session-id"]):
    url = f"{cluster.url}/v1/sessions/{session}/interrupt"
    got = await cluster.http.post(url, json={"min_version": min_version}, headers=SESSION)
    assert got.status_code == 200, got.text
    return got.json()["stopped"]


async def update(cluster, version):
    for replica in cluster.replicas:
        replica.version = version
    await cluster.bus.put(*(replica.member() for replica in cluster.replicas))


@pytest.mark.parametrize("after", EVERY_POSITION)
@pytest.mark.parametrize("ask", [_whole, _streamed])
async def test_an_interrupted_answer_equals_an_undisturbed_one(cluster, fault, ask, after):
    await cluster.start(max_retries=0)
    cluster.http.headers.update(SESSION)
    expected = await ask(cluster)
    cluster.faults.append(fault("stall", after))
    answer = asyncio.create_task(ask(cluster))
    stalled = await cluster.stalled()
    assert await interrupt(cluster, 2) == 1
    async with asyncio.timeout(300):
        await stalled.hung_up.wait()
    asked = sum(len(replica.bodies) for replica in cluster.replicas)
    assert not answer.done()
    await update(cluster, 2)
    (got,) = await answer
    (whole,) = expected
    assert sum(len(replica.bodies) for replica in cluster.replicas) == asked + 1
    for field in ("text", "tokens", "prompt", "ends"):
        assert got[field] == whole[field]
    assert got["versions"] == [1] * after + [2] * (len(got["tokens"]) - after)
    tokens = got["prompt"] + got["tokens"]
    prefixes = [tokens[: len(got["prompt"]) + at] for at in range(len(got["tokens"]))]
    assert got["logprobs"] == [
        logprob_of(prefix, version)
        for prefix, version in zip(prefixes, got["versions"], strict=True)
    ]


async def test_a_group_goes_on_choice_by_choice_and_finished_ones_stay_as_they_are(cluster, fault):
    await cluster.start(max_retries=0)
    cluster.http.headers.update(SESSION)
    body = {"n": 3, "seed": 0, "max_tokens": 12}
    expected = await _whole(cluster, **body)
    cluster.faults.append(fault("stall", 20))
    answer = asyncio.create_task(_whole(cluster, **body))
    await cluster.stalled()
    await interrupt(cluster, 2)
    await update(cluster, 2)
    got = await answer
    assert [one["tokens"] for one in got] == [one["tokens"] for one in expected]
    assert [one["versions"].count(1) for one in got] == [7, 7, 6]


async def test_it_can_be_interrupted_again_and_its_later_calls_wait_too(cluster, fault):
    await cluster.start(max_retries=0)
    cluster.http.headers.update(SESSION)
    cluster.faults.extend([fault("stall", 3), fault("stall", 4)])
    answer = asyncio.create_task(_whole(cluster))
    first = await cluster.stalled()
    await interrupt(cluster, 2)
    first.stalled.clear()
    await update(cluster, 2)
    await cluster.stalled()
    assert await interrupt(cluster, 2) == 0, "it is there already"
    assert await interrupt(cluster, 3) == 1
    later = asyncio.create_task(_whole(cluster, max_tokens=2))
    other = await cluster.http.post(
        f"{cluster.url}/v1/chat/completions",
        json={"model": "test-model", "messages": ASK, "max_tokens": 2, "return_trajectory": True},
        headers={"x-session-id": "another"},
    )
    assert other.json()["choices"][0]["trajectory"]["spans"][0][0] == 2
    assert not later.done()
    await update(cluster, 3)
    (got,) = await answer
    assert [got["versions"].count(version) for version in (1, 2)] == [3, 4]
    assert set((await later)[0]["versions"]) == {3}


async def test_an_interrupted_answer_whose_version_never_comes_ends_and_nothing_hangs(
    cluster, fault
):
    await cluster.start(interrupted_wait_s=0.05)
    cluster.faults.append(fault("stall", 3))
    body = {"model": "test-model", "messages": ASK}
    url = f"{cluster.url}/v1/chat/completions"
    answer = asyncio.create_task(cluster.http.post(url, json=body, headers=SESSION))
    await cluster.stalled()
    await interrupt(cluster, 9)
    refused = await answer
    assert refused.status_code == 503
    assert "no replica reached version 9" in refused.json()["error"]["message"]


async def test_an_episode_goes_on_and_its_session_has_one_trajectory_of_two_versions(
    cluster, fault
):
    await cluster.start()
    http, url = cluster.http, f"{cluster.url}/v1/sessions"
    session = (await http.post(url)).json()["id"]
    cluster.http.headers.update({"x-session-id": session})
    cluster.faults.append(fault("stall", 3))
    answer = asyncio.create_task(_whole(cluster))
    await cluster.stalled()
    await interrupt(cluster, 2, session)
    await update(cluster, 2)
    (got,) = await answer
    done = await http.post(f"{url}/{session}/finish", json={"return_trajectories": True})
    (trajectory,) = done.json()["trajectories"]
    assert trajectory["response_token_ids"] == got["tokens"]
    assert trajectory["loss_mask"] == [1] * len(got["tokens"])
    assert [span[:3] for span in trajectory["spans"]] == [[1, 0, 3], [2, 3, len(got["tokens"])]]


async def test_a_bad_interruption_is_refused_with_the_field(cluster):
    await cluster.start()
    got = await cluster.http.post(f"{cluster.url}/v1/sessions/x/interrupt", json={"version": 3})
    assert got.status_code == 400
    assert "version" in got.json()["error"]["message"]
