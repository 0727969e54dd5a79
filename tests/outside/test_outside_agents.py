"""Agents outside take a run's sessions, play them through any door, and say what they earned."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from services.observability.metrics import RouterMetrics
from services.orchestrator.rollout.rollout import RolloutFailed
from services.orchestrator.rollout.session_client import SessionClient
from services.protocol.errors import InvalidInput
from services.protocol.session import SessionEnding, SessionOffer
from services.router.config import RouterConfig
from services.router.trajectories import kept_sessions
from services.router.trajectories.session_store import SessionStore
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.trajectory_tree import History, RecordedCall, RecordedChoice
from services.side_by_side import cancel
from tests.outside.conftest import RUN, request, sampler
from tests.router.conftest import Cluster


async def take(cluster: Cluster, **asked: Any) -> dict[str, Any]:
    asked = {"wait_s": 30, **asked}
    answer = await cluster.http.post(f"{cluster.url}/v1/sessions/take", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def end(cluster: Cluster, session: str, **ending: Any) -> int:
    url = f"{cluster.url}/v1/sessions/{session}/finish"
    return (await cluster.http.post(url, json=ending)).status_code


async def chat(cluster: Cluster, session: str, said: str, **more: Any) -> str:
    """As an agent does that knows a base URL and a key, and asks for a model of its own."""
    async with openai.AsyncOpenAI(
        base_url=f"{cluster.url}/v1", api_key=session, max_retries=0
    ) as client:
        answer = await client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": said}], **more
        )
    return answer.choices[0].message.content or ""


async def sampled(cluster: Cluster, rollout: Any, agent: Any) -> tuple[list[Any], Any]:
    """What arrives of a rollout while an agent plays each of its episodes, and how it failed."""
    arrived: list[Any] = []

    async def agents() -> None:
        for _ in range(rollout.n):
            taken = await take(cluster)
            await agent(taken["session"]["id"], taken["task"])

    async with sampler(cluster) as rollouts:
        playing = asyncio.create_task(agents())
        sampling = asyncio.create_task(rollouts.sample(rollout, lambda *one: arrived.append(one)))
        done, _ = await asyncio.wait(
            {playing, sampling}, timeout=120, return_when=asyncio.FIRST_EXCEPTION
        )
        assert playing in done, "the agents did not end"
        playing.result()
        try:
            await asyncio.wait_for(sampling, 120)
        except RolloutFailed as failed:
            return arrived, failed
        return arrived, None


async def test_an_agent_is_told_its_task_and_its_rewards_train(cluster):
    told: list[Any] = []

    async def agent(session: str, task: dict[str, Any]) -> None:
        told.append(task)
        said = await chat(cluster, session, "go on\nwith this", temperature=0.0, max_tokens=900)
        assert said.endswith("with this"), said
        assert await end(cluster, session, reward=float(len(told))) == 200

    arrived, failed = await sampled(cluster, request(grader=True), agent)
    assert failed is None
    first = {"task_id": "t1", "messages": [{"role": "user", "content": "tell me\nwords"}]}
    assert told == [{**first, "data": {"hint": 7}}] * 2, "and not how it is graded"
    assert sorted(score.reward for *_, score in arrived) == [1.0, 2.0]
    for body in (body for replica in cluster.replicas for body in replica.bodies):
        assert body["model"] == "test-model"
        assert body["sampling_params"]["max_tokens"] <= 20
        assert body["sampling_params"]["temperature"] == 0.7
    seeds = [b["sampling_params"]["seed"] for r in cluster.replicas for b in r.bodies]
    assert len(set(seeds)) == 2


async def test_any_door_is_open_with_a_sessions_key(cluster):
    async def agent(session: str, task: dict[str, Any]) -> None:
        async with anthropic.AsyncAnthropic(
            base_url=cluster.url, api_key=session, max_retries=0
        ) as client:
            await client.messages.create(
                model="claude", max_tokens=900, messages=[{"role": "user", "content": "hi\nyou"}]
            )
        async with openai.AsyncOpenAI(
            base_url=f"{cluster.url}/v1", api_key=session, max_retries=0
        ) as client:
            await client.responses.create(model="gpt", input="hi\nagain")
        await end(cluster, session, reward=1)

    arrived, failed = await sampled(cluster, request(), agent)
    assert failed is None
    assert {index for index, *_ in arrived} == {0, 1}
    texts = sorted(bytes(t for t in one.response_token_ids if t < 256) for _, one, _ in arrived)
    assert len(texts) == 4, "two conversations of each agent"


async def test_rewards_of_turns_add_up(cluster):
    async def agent(session: str, task: dict[str, Any]) -> None:
        await chat(cluster, session, "hi")
        url = f"{cluster.url}/v1/sessions/{session}/rewards"
        for reward in (0.25, 0.5):
            assert (await cluster.http.post(url, json={"reward": reward})).status_code == 200
        await end(cluster, session, reward=1)

    arrived, _ = await sampled(cluster, request(), agent)
    assert [score.reward for *_, score in arrived] == [1.75, 1.75]


async def test_rewards_of_tokens_are_as_many_as_logprobs_show(cluster):
    async def agent(session: str, task: dict[str, Any]) -> None:
        url = f"{cluster.url}/v1/sessions/{session}/rewards"
        async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=session) as client:
            answer = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "hi"}], logprobs=True
            )
        shown = len(answer.choices[0].logprobs.content)
        for more, status in ((1, 400), (-1, 400), (0, 200)):
            rewards = {"token_rewards": [0.5] * (shown + more)}
            assert (await cluster.http.post(url, json=rewards)).status_code == status
        assert (await cluster.http.post(url, json={})).status_code == 400
        await end(cluster, session, reward=1)

    arrived, failed = await sampled(cluster, request(), agent)
    assert failed is None
    for _, one, score in arrived:
        tokens = sum(one.loss_mask)
        assert tokens == len(one.response_token_ids)
        assert score.returns == ((tokens, 1 + tokens / 2),)


@pytest.mark.parametrize("ending", [{}, {"text": "an answer"}], ids=["last answer", "text"])
async def test_the_tasks_grader_judges_where_an_agent_does_not(cluster, ending):
    async def agent(session: str, task: dict[str, Any]) -> None:
        await chat(cluster, session, "say\nthis")
        await end(cluster, session, **ending)

    arrived, failed = await sampled(cluster, request(grader=True), agent)
    assert failed is None
    assert all(len(one) == 2 for one in arrived), "no score yet"
    last = ending.get("text")
    assert all(one.text == last if last else one.text.endswith("this") for _, one in arrived)
    arrived, failed = await sampled(cluster, request(), agent)
    assert failed.reason == "environment_result"


async def _fails(cluster: Cluster, session: str) -> None:
    await chat(cluster, session, "hi")
    await end(cluster, session, failure="the tool is not installed")


async def _never_calls(cluster: Cluster, session: str) -> None:
    await end(cluster, session, reward=1)


async def _walks_off(cluster: Cluster, session: str) -> None:
    await chat(cluster, session, "hi")


async def _stays_away(cluster: Cluster, session: str) -> None:
    """As if none were there."""


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (_fails, "agent_failed"),
        (_never_calls, "environment_never_called"),
        (_walks_off, "agent_abandoned"),
    ],
    ids=["fails", "never calls", "walks off"],
)
async def test_an_episode_that_an_agent_does_not_end_well_is_never_a_reward(cluster, agent, reason):
    async def play(session: str, task: dict[str, Any]) -> None:
        await agent(cluster, session)

    arrived, failed = await sampled(cluster, request(progress_s=2.0), play)
    assert failed.reason == reason
    assert all(score.reward is None for *_, score in arrived)


async def test_a_task_that_no_agent_takes_is_named(cluster):
    async with sampler(cluster) as rollouts:
        with pytest.raises(RolloutFailed) as failed:
            await rollouts.sample(request(progress_s=1.0), lambda *one: None)
    assert failed.value.reason == "agent_absent"


async def test_what_comes_late_twice_or_for_others_changes_nothing(cluster):
    kept: list[str] = []

    async def agent(session: str, task: dict[str, Any]) -> None:
        await chat(cluster, session, "hi")
        kept.append(session)
        assert await end(cluster, session, reward=1) == 200
        assert await end(cluster, session, reward=2) in (404, 409), "another reward"

    arrived, _ = await sampled(cluster, request(), agent)
    assert [score.reward for *_, score in arrived] == [1.0, 1.0]
    assert await end(cluster, kept[0], reward=5) == 404, "it was read and deleted"
    opened = (await cluster.http.post(f"{cluster.url}/v1/sessions", json={})).json()["id"]
    for door in ("rewards", "finish"):
        for wrong in ("NaN", '"1.5"', '"a lot"', "Infinity", "true"):
            url = f"{cluster.url}/v1/sessions/{opened}/{door}"
            answer = await cluster.http.post(url, content=f'{{"reward": {wrong}}}')
            assert answer.status_code == 400, (door, wrong)
            assert "reward" in answer.text
    assert await end(cluster, opened, reward=1) == 200, "no wrong one has ended it"
    both = await cluster.http.post(url, json={"reward": 1, "failure": "no"})
    assert both.status_code == 400
    assert "Leave it or reward out" in both.text


async def test_sessions_of_another_run_are_not_given(cluster):
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(
            rollouts.sample(request(progress_s=5.0, n=1), lambda *one: None)
        )
        assert (await take(cluster, run="another", wait_s=0.2))["session"] is None
        taken = await take(cluster, run=RUN)
        await chat(cluster, taken["session"]["id"], "hi")
        await end(cluster, taken["session"]["id"], reward=1)
        await sampling
    assert (await take(cluster, wait_s=0.0))["session"] is None, "it was given once"


async def test_a_sessions_key_opens_its_own_session_and_nothing_else(tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: alice, key: a-key-of-alices-own}\n")
    cluster = Cluster()
    await cluster.start(access={"api_keys_file": str(keys)})
    try:
        alice = {"authorization": "Bearer a-key-of-alices-own"}
        post, url = cluster.http.post, f"{cluster.url}/v1/sessions"
        mine, other = [(await post(url, json={}, headers=alice)).json()["id"] for _ in range(2)]
        agent = {"authorization": f"Bearer {mine}"}
        body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
        chats = f"{cluster.url}/v1/chat/completions"
        assert (await post(chats, json=body, headers=agent)).status_code == 200
        assert (await post(f"{url}/{mine}/rewards", json={"reward": 1}, headers=agent)).is_success
        # Clients send names of their own by this header; the key is the session all the same.
        elsewhere = agent | {"x-session-id": other}
        assert (await post(chats, json=body, headers=elsewhere)).status_code == 200
        for path in ("", "/take", f"/{other}/finish", f"/{mine}/interrupt"):
            assert (await post(url + path, json={}, headers=agent)).status_code == 401, path
        forged = {"authorization": "Bearer sess_0123456789abcdef0123456789abcdef"}
        assert (await post(chats, json=body, headers=forged)).status_code == 401
        kept = (await cluster.http.get(f"{url}/{mine}", headers=alice)).json()
        assert kept["calls"] == {"first": 1, "resampled": 1}
        untouched = (await cluster.http.get(f"{url}/{other}", headers=alice)).json()
        assert untouched["calls"] == {}
    finally:
        await cluster.close()


def test_offers_are_given_in_order_and_go_with_their_sessions():
    store = SessionStore(RouterConfig())
    made = [store.create({}, now=0.0, wall=0.0, offer=offer(run=run, key="")) for run in "aba"]
    store.delete(made[0])
    for run, expected in (("a", made[2]), (None, made[1])):
        assert store.offered(run) is expected
        store.take(expected, now=1.0)
    assert store.offered(None) is None


def kept(tmp_path: Path) -> Sessions:
    return Sessions(RouterConfig(sessions_dir=str(tmp_path / "sessions")))


def offer(**changes: Any) -> SessionOffer:
    given = {"task": {"task_id": "t"}, "run": RUN, "key": "g/0", "model": "m", "max_tokens": 4}
    return SessionOffer.model_validate({**given, **changes})


def call(said: list[int]) -> RecordedCall:
    choice = RecordedChoice(
        token_ids=[7],
        logprobs=[-0.5],
        spans=[(1, 0, 1, "a")],
        finish_reason="stop",
        text="x",
    )
    return RecordedCall(prompt_token_ids=said, choices=(choice,), history=History(()))


async def played(sessions: Sessions) -> str:
    """A session in the middle of its episode."""
    name = (await sessions.create({"index": "0"}, offer())).id
    assert (await sessions.take(None)).session is not None
    start = await sessions.begin(name)
    await sessions.end(name, start.number, call([1, 2, 3]))
    await sessions.add_reward(name, 0.25)
    await sessions.begin(name)  # in the middle of a call
    return name


async def test_a_half_played_session_outlives_the_process_that_has_it(tmp_path):
    before = kept(tmp_path)
    name = await played(before)
    ended = (await before.create({}, offer(key="g/1"))).id
    await before.finish(ended, SessionEnding(reward=1.0))
    await before.delete((await before.create({}, offer(key="g/2"))).id)
    expected = [await before.get(one) for one in (name, ended)]
    before.close()
    after = kept(tmp_path)
    for was in expected:
        found = await after.get(was.id)
        moved = {"cursor", "created", "open_calls"}
        assert found.model_dump(exclude=moved) == was.model_dump(exclude=moved)
    assert len(await after.listed("open", 0, 10, 0)) == 1
    assert (await after.create({}, offer())).id == name, "its run finds it again"
    start = await after.begin(name)
    assert start.fixed.sampling["seed"] == 1, "the one of the call that was lost"
    await after.end(name, start.number, call([1, 2, 3, 7, 9]))
    assert (await after.finish(name, SessionEnding(reward=1.0))).reward == 1.25
    assert (await after.get(name)).calls == {"first": 1, "extended": 1}


async def test_a_call_that_ends_after_its_process_was_replaced_is_recorded(tmp_path):
    before = kept(tmp_path)
    name = (await before.create({"index": "0"}, offer())).id
    start = await before.begin(name)
    before.close()
    after = kept(tmp_path)
    later = await after.begin(name)
    assert later.number != start.number
    await after.end(name, start.number, call([1, 2, 3]))
    await after.end(name, later.number, call([1, 2, 3, 7, 9]))
    found = await after.get(name)
    assert (found.calls, found.open_calls) == ({"first": 1, "extended": 1}, 0)


async def test_a_change_that_was_not_written_whole_is_left_out(tmp_path):
    before = kept(tmp_path)
    name = await played(before)
    before.close()
    with (tmp_path / "sessions" / name).open("r+b") as file:
        file.truncate(file.seek(0, 2) - 3)
    after = kept(tmp_path)
    assert (await after.finish(name, SessionEnding())).reward is None, "the reward was cut"
    after.close()
    assert (await kept(tmp_path).get(name)).state == "finished"


async def test_a_damaged_session_is_set_aside_and_the_others_are_there(tmp_path):
    before = kept(tmp_path)
    names = [await played(before), (await before.create({}, offer(key="g/2"))).id]
    before.close()
    file = tmp_path / "sessions" / names[0]
    file.write_bytes(b"\0" * 9 + b"\n" + file.read_bytes())
    after = kept(tmp_path)
    assert [one.id for one in await after.listed("open", 0, 10, 0)] == names[1:]
    assert file.with_name(f"damaged-{file.name}").exists()


async def test_a_session_that_cannot_be_written_is_counted_and_goes_on(tmp_path, monkeypatch):
    failed: list[int] = []
    monkeypatch.setattr(RouterMetrics.sessions_not_written, "inc", lambda: failed.append(1))
    sessions = kept(tmp_path)
    name = (await sessions.create({}, offer())).id
    file = tmp_path / "sessions" / name
    file.unlink()
    file.mkdir()
    assert (await sessions.finish(name, SessionEnding(reward=1.0))).reward == 1.0
    assert failed


async def test_a_session_that_could_not_be_written_once_is_written_no_more(tmp_path):
    """What is left of it would be its end alone."""
    before = kept(tmp_path)
    name = await played(before)
    file = tmp_path / "sessions" / name
    file.unlink()
    file.symlink_to("/dev/full")
    await before.add_reward(name, 0.5)
    assert not file.exists()
    await before.finish(name, SessionEnding(reward=1.0))
    assert not file.exists()
    before.close()
    assert await kept(tmp_path).listed("open", 0, 10, 0) == []


@pytest.mark.parametrize(
    "changes",
    [
        '["finish",{"reward":1.0}]',
        '["create",{},{"run":7}]',
        '["create",{},OFFER]\n["take"]\n["take"]',
        '["create",{},OFFER]\n["record",1]',
        '["create",7,OFFER]',
        '"create"',
    ],
    ids=["no beginning", "offer", "taken twice", "record", "metadata", "no change"],
)
async def test_a_session_that_cannot_be_made_again_is_set_aside(tmp_path, changes):
    before = kept(tmp_path)
    good = (await before.create({}, offer())).id
    before.close()
    file = tmp_path / "sessions" / "sess_damaged"
    file.write_text(changes.replace("OFFER", offer(key="g/1").model_dump_json()) + "\n")
    after = kept(tmp_path)
    assert [one.id for one in await after.listed("open", 0, 10, 0)] == [good]
    aside = file.with_name("damaged-sess_damaged")
    assert [one.name for one in file.parent.glob("*damaged*")] == [aside.name]
    assert (await after.create({}, offer(key="g/1"))).id != file.name, "nor is its offer known"


async def test_a_session_that_is_too_large_for_its_next_router_stops_nothing(tmp_path):
    before = kept(tmp_path)
    name = await played(before)
    start = await before.begin(name)
    await before.end(name, start.number, call([1, 2, 3, 7, 9]))
    before.close()
    folder = str(tmp_path / "sessions")
    after = Sessions(RouterConfig(sessions_dir=folder, max_recorded_tokens=1))
    assert await after.listed("open", 0, 10, 0) == []


def test_a_folder_that_another_router_uses_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_sessions, "_LOCKED_S", 0.2)
    first = kept(tmp_path)
    with pytest.raises(InvalidInput, match=r"sessions_dir.*a folder of its own"):
        kept(tmp_path)
    first.close()


async def test_a_run_that_was_killed_finds_its_half_played_episodes_again(cluster, monkeypatch):
    async def lost(self: SessionClient, session: str) -> None:
        """`kill -9`: nothing is deleted."""

    with monkeypatch.context() as killed:
        killed.setattr(SessionClient, "delete", lost)
        async with sampler(cluster) as rollouts:
            sampling = asyncio.create_task(rollouts.sample(request(), lambda *one: None))
            half = [(await take(cluster))["session"]["id"] for _ in range(2)]
            for session in half:
                await chat(cluster, session, "hi")
            await end(cluster, half[0], reward=1)
            await cancel(sampling)
    arrived: list[Any] = []
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(request(), lambda *one: arrived.append(one)))
        await chat(cluster, half[1], "hi again")
        await end(cluster, half[1], reward=2)
        await asyncio.wait_for(sampling, 60)
    assert {score.reward for *_, score in arrived} == {1.0, 2.0}
    assert len(arrived) == 3, "one call of the first, two of the second"


@pytest.mark.parametrize("goes_on", [True, False], ids=["replaced", "stopped"])
async def test_only_the_end_of_a_run_ends_half_played_sessions(cluster, goes_on):
    rollout = replace(request(n=1), goes_on=lambda: goes_on)
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(rollout, lambda *one: None))
        session = (await take(cluster))["session"]["id"]
        await chat(cluster, session, "hi")
        await cancel(sampling)
    assert await end(cluster, session, reward=1) == (200 if goes_on else 404)
