"""Recorded sessions over HTTP: what an agent's calls leave behind."""

import asyncio
import threading
from pathlib import Path

import openai
import pytest

from services.protocol.router import SESSION_HEADER
from services.protocol.session import SessionFields, SessionList, SessionSummary
from services.router.trajectories.trajectory_tree import TrajectoryReading

MODEL = "test-model"
EOS, MARK = 256, 300


class Desk:
    """`/v1/sessions` as a client sees it."""

    def __init__(self, cluster):
        self._http, self._url = cluster.http, f"{cluster.url}/v1/sessions"

    async def ask(self, method, path="", **how):
        return await self._http.request(method, self._url + path, **how)

    async def make(self, **body):
        return SessionSummary.model_validate((await self.ask("POST", json=body)).json()).id

    async def read(self, name):
        return SessionFields.model_validate((await self.ask("GET", f"/{name}")).json())

    async def finish(self, name, **body):
        body = {"return_trajectories": True, **body}
        got = await self.ask("POST", f"/{name}/finish", json=body)
        assert got.status_code == 200, got.text
        return SessionFields.model_validate(got.json())

    async def listed(self, **query):
        got = await self.ask("GET", params=query)
        return SessionList.model_validate(got.json()).data


def _user(text):
    return {"role": "user", "content": text}


async def _say(cluster, session, messages, **extra):
    return await cluster.client.chat.completions.create(
        model=MODEL, messages=messages, extra_headers={SESSION_HEADER: session}, **extra
    )


async def _turn(cluster, session, messages, **extra):
    """One turn of an agent that keeps its history as text."""
    answer = await _say(cluster, session, messages, **extra)
    return [*messages, {"role": "assistant", "content": answer.choices[0].message.content}]


async def test_the_calls_of_an_agent_become_one_token_exact_trajectory(cluster):
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make(metadata={"task": "7"})
    messages = await _turn(cluster, name, [_user("one")])
    cluster.replicas[0].version = cluster.replicas[1].version = 2
    messages = await _turn(cluster, name, [*messages, _user("two")])
    done = await desk.finish(name, reward=0.5)
    assert (done.state, done.reward, done.metadata) == ("finished", 0.5, {"task": "7"})
    assert done.calls == {"first": 1, "extended": 1}
    (made,) = done.trajectories
    first, between, second = [*b"aone", EOS], [*b"user\ntwo", MARK], [*b"atwo", EOS]
    assert made.prompt_token_ids == [*b"user\none", MARK]
    assert made.response_token_ids == [*first, *between, *second]
    assert made.loss_mask == [1] * 5 + [0] * 9 + [1] * 5
    assert [(version, start, end) for version, start, end, _ in made.spans] == [
        (1, 0, 5),
        (2, 5, 19),
    ]
    assert (made.finish_reason, made.text, made.calls) == ("stop", "atwo", 2)
    assert made.to_trajectory().oldest_version == 1


async def test_a_trajectory_equals_what_the_answers_themselves_carried(cluster, fault):
    """Also after a replica was lost in the middle of an answer, and for streams."""
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make()
    carried, messages = [], [_user("one")]
    for turn in range(3):
        cluster.faults.append(fault("drop", 2))
        answer = await _say(cluster, name, messages, extra_body={"return_trajectory": True})
        carried.append(answer.choices[0].model_extra["trajectory"])
        said = {"role": "assistant", "content": answer.choices[0].message.content}
        messages = [*messages, said, _user(f"turn {turn}")]
    events = await _say(cluster, name, messages, stream=True)
    last = "".join([event.choices[0].delta.content or "" async for event in events])
    (made,) = (await desk.read(name)).trajectories
    assert made.calls == 4
    assert last == made.text == "aturn 2"
    whole = made.prompt_token_ids + made.response_token_ids
    sampled = [
        (token, value)
        for token, value, mask in zip(
            made.response_token_ids, made.behaviour_logprobs, made.loss_mask, strict=True
        )
        if mask
    ]
    for part in carried:
        end = len(part["prompt_token_ids"]) + len(part["token_ids"])
        assert whole[:end] == part["prompt_token_ids"] + part["token_ids"]
        pairs = list(zip(part["token_ids"], part["logprobs"], strict=True))
        assert sampled[: len(pairs)] == pairs
        del sampled[: len(pairs)]
    assert len(sampled) == len("aturn 2") + 1


async def test_an_edited_history_and_several_answers_branch(cluster):
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make()
    messages = await _turn(cluster, name, [_user("one")])
    await _say(cluster, name, [*messages, _user("two")], n=2)
    changed = [messages[0], {"role": "assistant", "content": "no"}, _user("two")]
    await _say(cluster, name, changed)
    done = await desk.finish(name)
    assert done.calls == {"first": 1, "extended": 1, "other_history": 1}
    assert [made.begun_by for made in done.trajectories] == ["first", "extended", "other_history"]
    assert sum(sum(made.loss_mask) for made in done.trajectories) == 5 + 2 * 5 + 5


async def test_an_answer_written_as_other_tokens_is_never_joined(cluster):
    """As a tokenizer may do with a sampled text: the same characters, other ids."""
    await cluster.start(replicas=1)
    desk, (replica,) = Desk(cluster), cluster.replicas
    name = await desk.make()
    messages = await _turn(cluster, name, [_user("one")])
    original = replica._rendered

    def elsewise(*how):
        rendered = original(*how)
        ids = rendered["token_ids"]
        at = ids.index(ord("a"), ids.index(MARK))
        rendered["token_ids"] = [*ids[:at], 257, *ids[at + 1 :]]
        return rendered

    replica._rendered = elsewise
    # The fake speaks bytes; it ends an answer to anything else at once.
    await _say(cluster, name, [*messages, _user("two")])
    done = await desk.finish(name)
    assert done.calls == {"first": 1, "retokenized": 1}
    assert [made.calls for made in done.trajectories] == [1, 1]


async def test_finish_is_idempotent_and_ends_the_session(cluster):
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make()
    await _say(cluster, name, [_user("one")])
    assert len(cluster.reservations.chooser.homes) == 1
    done = await desk.finish(name, reward=1)
    assert len(cluster.reservations.chooser.homes) == 0
    assert await desk.finish(name) == await desk.finish(name, reward=1.0) == done
    other = await desk.ask("POST", f"/{name}/finish", json={"reward": 0})
    assert (other.status_code, other.json()["error"]["type"]) == (409, "session_finished")
    with pytest.raises(openai.ConflictError, match="is finished"):
        await _say(cluster, name, [_user("two")])
    assert await desk.read(name) == done


async def test_finish_tells_of_trajectories_only_if_it_is_asked(cluster):
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make()
    await _say(cluster, name, [_user("one")])
    got = (await desk.ask("POST", f"/{name}/finish", json={"reward": 1})).json()
    summary = SessionSummary.model_validate(got)
    assert (summary.trajectory_count, summary.trajectory_tokens) == (1, len("user\none") + 1 + 5)


async def test_what_is_too_much_for_one_answer_is_read_in_parts(cluster):
    """One trajectory never is too much, or nobody could read it."""
    await cluster.start(max_returned_tokens=30)
    desk = Desk(cluster)
    name = await desk.make()
    for word in ("one", "two", "six"):
        await _say(cluster, name, [_user(word)])
    got = await desk.ask("GET", f"/{name}")
    assert (got.status_code, got.json()["error"]["type"]) == (413, "session_too_large")
    assert "?first=0&count=2" in got.json()["error"]["message"]
    parts = [
        (await desk.ask("GET", f"/{name}", params={"first": first, "count": 2})).json()
        for first in (0, 2, 4)
    ]
    texts = [[made["text"] for made in part["trajectories"]] for part in parts]
    assert texts == [["aone", "atwo"], ["asix"], []]
    assert parts[0]["trajectory_count"] == 3
    await _say(cluster, name, [_user("a prompt of more than thirty tokens")])
    (made,) = (await desk.ask("GET", f"/{name}", params={"first": 3})).json()["trajectories"]
    assert len(made["prompt_token_ids"]) > 30


async def test_while_a_large_session_is_read_others_are_served(cluster, monkeypatch):
    await cluster.start()
    desk, began, goes_on = Desk(cluster), asyncio.Event(), threading.Event()
    name = await desk.make()
    await _say(cluster, name, [_user("one")])
    loop, written = asyncio.get_running_loop(), TrajectoryReading.trajectories

    def slowly(*how):
        loop.call_soon_threadsafe(began.set)
        assert goes_on.wait(300)
        return written(*how)

    monkeypatch.setattr(TrajectoryReading, "trajectories", slowly)
    reading = asyncio.create_task(desk.read(name))
    await asyncio.wait_for(began.wait(), 300)
    await _say(cluster, "another", [_user("two")])
    goes_on.set()
    assert len((await reading).trajectories) == 1


async def test_a_session_that_is_not_there_is_named_and_never_silently_left_out(cluster):
    await cluster.start()
    desk = Desk(cluster)
    for method, path in [("GET", ""), ("POST", "/finish"), ("DELETE", "")]:
        got = await desk.ask(method, f"/sess_gone{path}")
        assert (got.status_code, got.json()["error"]["type"]) == (404, "session_not_found")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await _say(cluster, "sess_gone", [_user("one")])
    assert not any(replica.bodies for replica in cluster.replicas)


async def test_a_name_of_the_clients_own_is_recorded_only_if_configured(cluster):
    await cluster.start()
    await _say(cluster, "episode-7", [_user("one")])
    assert (await Desk(cluster).ask("GET", "/episode-7")).status_code == 404


async def test_with_record_sessions_a_call_makes_its_session(cluster):
    await cluster.start(record_sessions=True)
    desk = Desk(cluster)
    await _say(cluster, "episode-7", [_user("one")])
    assert (await desk.finish("episode-7")).calls == {"first": 1}
    with pytest.raises(openai.BadRequestError, match="cannot be recorded"):
        await _say(cluster, "a/b", [_user("one")])


async def test_calls_without_an_answer_leave_nothing_and_are_counted(cluster, fault):
    await cluster.start(replicas=1)
    desk = Desk(cluster)
    name = await desk.make()
    with pytest.raises(openai.BadRequestError):
        await _say(cluster, name, [_user("one")], temperature=-1)
    cluster.faults.append(fault("stall", 2))
    given_up = asyncio.create_task(_say(cluster, name, [_user("one")]))
    replica = await cluster.stalled()
    assert (await desk.read(name)).open_calls == 1
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await asyncio.wait_for(replica.hung_up.wait(), 300)
    done = await desk.finish(name)
    assert (done.calls, done.unrecorded_calls, done.trajectories) == ({}, 2, [])


async def test_what_has_no_journal_is_refused_in_a_recorded_session_and_only_there(cluster):
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make()
    ask = {"model": MODEL, "prompt": "one", "echo": True}
    for session, status in [(name, 400), ("episode-7", 200)]:
        headers = {SESSION_HEADER: session}
        got = await cluster.http.post(f"{cluster.url}/v1/completions", json=ask, headers=headers)
        assert got.status_code == status, got.text
    assert (await desk.finish(name)).unrecorded_calls == 1


async def test_a_call_answered_after_the_finish_is_not_in_the_session(cluster, fault):
    await cluster.start(replicas=2, between_tokens_s=0.3, first_token_s=0.3)
    desk = Desk(cluster)
    name = await desk.make()
    cluster.faults.append(fault("stall", 2))
    late = asyncio.create_task(_say(cluster, name, [_user("one")]))
    await cluster.stalled()
    assert (await desk.finish(name)).open_calls == 1
    assert (await late).choices[0].message.content == "aone"
    after = await desk.read(name)
    assert (after.open_calls, after.unrecorded_calls, after.trajectories) == (0, 1, [])


async def test_finished_sessions_are_read_in_order_and_acknowledged(cluster):
    await cluster.start()
    desk = Desk(cluster)
    names = [await desk.make() for _ in range(4)]
    for name in (names[2], names[0], names[1]):
        await desk.finish(name)
    first, second = await desk.listed(limit=2)
    assert [first.id, second.id] == [names[2], names[0]]
    (third,) = await desk.listed(after=second.cursor)
    assert third.id == names[1]
    assert [left.id for left in await desk.listed(state="open")] == [names[3]]
    await desk.ask("DELETE", f"/{names[2]}")
    assert [left.id for left in await desk.listed()] == [names[0], names[1]]
    assert await desk.listed(after=third.cursor, wait_s=0.01) == []


async def test_a_list_request_waits_for_the_next_session_to_finish(cluster):
    await cluster.start()
    desk = Desk(cluster)
    name = await desk.make()
    waiting = asyncio.create_task(desk.listed(wait_s=10))
    await desk.read(name)
    assert not waiting.done()
    await desk.finish(name)
    assert [found.id for found in await asyncio.wait_for(waiting, 300)] == [name]


@pytest.mark.parametrize(
    ("method", "path", "how", "param"),
    [
        ("POST", "", {"json": {"meta": {}}}, "meta"),
        ("POST", "", {"json": {"metadata": {"a": 1}}}, "metadata.a"),
        ("POST", "", {"json": {"metadata": {"a": "x" * 513}}}, "metadata.a"),
        ("POST", "", {"json": [1]}, "(whole document)"),
        ("POST", "/sess_x/finish", {"json": {"reward": "good"}}, "reward"),
        ("POST", "/sess_x/finish", {"content": b'{"reward": NaN}'}, "reward"),
        ("GET", "", {"params": {"state": "new"}}, "state"),
        ("GET", "", {"params": {"limit": 0}}, "limit"),
    ],
    ids=str,
)
async def test_bad_input_is_refused_by_field(cluster, method, path, how, param):
    await cluster.start(replicas=0)
    got = await Desk(cluster).ask(method, path, **how)
    assert got.status_code == 400, got.text
    assert got.json()["error"]["param"] == param


async def test_a_recorded_session_takes_no_call_whose_tokens_nobody_tells(cluster):
    await cluster.start()
    session = await Desk(cluster).make()
    with pytest.raises(
        openai.BadRequestError, match="recorded session needs tokens that an answer with echo"
    ):
        await cluster.client.completions.create(
            model=MODEL, prompt="a", echo=True, extra_headers={SESSION_HEADER: session}
        )
    await cluster.client.completions.create(
        model=MODEL, prompt="a", echo=True, extra_headers={SESSION_HEADER: "unrecorded"}
    )


async def test_the_guides_example_runs(cluster, capsys):
    await cluster.start()
    guide = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text()
    example = guide.split("```python\n")[1].split("```")[0]
    for written, here in (("http://127.0.0.1:8000", cluster.url), ("tiny_code", MODEL)):
        assert written in example
        example = example.replace(written, here)
    await asyncio.to_thread(exec, example, {})
    sampled = len("alarger of a and 7") + 1 + len("a4") + 1
    assert capsys.readouterr().out == f"2 {sampled} first\n"
