"""Recorded sessions of several routers: in one process, which any of them may lose."""

import asyncio
import json
import pickle

import httpx
import openai
import pytest
from fastapi import FastAPI

from services.protocol.errors import NotReady
from services.protocol.router import SESSION_HEADER
from services.protocol.session import SessionEnding, SessionOffer
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.http.forwarded import forwarded_routes
from services.router.trajectories import lost_routers
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.shared_sessions import SharedSessions

CONFIG = RouterConfig(replicas=2)


class Process:
    """Everything that goes in or comes out crosses a process boundary.

    Attributes:
        routers: that Serve says there are; None: it does not answer.
        looked: Serve was asked.
    """

    def __init__(self):
        self.routers, self.looked = {"a", "b"}, asyncio.Event()
        self.sessions, self.gone, self.calls = Sessions(CONFIG, self.there), False, []

    async def there(self):
        self.looked.set()
        return self.routers

    async def call(self, method, *args, timeout_s):
        self.calls.append(method)
        if self.gone:
            raise NotReady("the process is gone")
        try:
            answer = await getattr(self.sessions, method)(*pickle.loads(pickle.dumps(args)))
        except RequestFailed as refusal:
            raise pickle.loads(pickle.dumps(refusal)) from None
        return pickle.loads(pickle.dumps(answer))


@pytest.fixture
async def process(cluster):
    process = Process()
    await cluster.start(sessions=SharedSessions(CONFIG, process))
    return process


async def _say(cluster, session):
    return await cluster.client.chat.completions.create(
        model="test-model",
        messages=[{"role": "user", "content": "one"}],
        extra_headers={SESSION_HEADER: session},
    )


async def test_what_one_router_recorded_another_one_knows(cluster, process):
    other = SharedSessions(CONFIG, process)
    made = await other.create({"task": "7"})
    await _say(cluster, made.id)
    found = await other.get(made.id)
    assert [bytes(found.trajectories[0].response_token_ids[:-1])] == [b"aone"]
    await other.finish(made.id, SessionEnding(reward=0.5))
    (listed,) = await other.listed("finished", 0, 10, 0.0)
    assert (listed.id, listed.reward, listed.metadata) == (made.id, 0.5, {"task": "7"})
    with pytest.raises(openai.ConflictError, match="is finished"):
        await _say(cluster, made.id)
    with pytest.raises(RequestFailed) as refusal:
        await other.finish(made.id, SessionEnding(reward=1.0))
    assert (refusal.value.status, refusal.value.body["error"]["param"]) == (409, "reward")


async def test_calls_that_are_not_recorded_ask_nobody(cluster, process):
    await _say(cluster, "episode-7")
    assert process.calls == []


async def test_without_the_process_recorded_sessions_are_refused_and_all_else_goes_on(
    cluster, process
):
    made = await SharedSessions(CONFIG, process).create({})
    process.gone = True
    with pytest.raises(openai.InternalServerError, match="cannot be reached") as refusal:
        await _say(cluster, made.id)
    assert refusal.value.type == "sessions_unavailable"
    assert (await _say(cluster, "episode-7")).choices[0].message.content == "aone"


async def test_a_record_that_is_lost_costs_no_answer(cluster, process):
    made = await SharedSessions(CONFIG, process).create({})
    begin = process.sessions.begin

    async def last_words(*call):
        process.gone = True
        return await begin(*call)

    process.sessions.begin = last_words
    assert (await _say(cluster, made.id)).choices[0].message.content == "aone"
    process.gone = False
    assert (await process.sessions.get(made.id)).calls == {}


async def test_agents_are_told_to_come_again_while_their_sessions_cannot_be_reached(
    cluster, tmp_path
):
    """What is refused for its key no client sends again."""
    keys, process = tmp_path / "keys.yaml", Process()
    keys.write_text("- {name: alice, key: a-key-of-alices-own}\n")
    sessions = SharedSessions(CONFIG, process)
    await cluster.start(sessions=sessions, access={"api_keys_file": str(keys)})
    made = await sessions.create({})
    url, agent = f"{cluster.url}/v1/sessions", {"authorization": f"Bearer {made.id}"}
    process.gone = True
    refused = await cluster.http.get(f"{url}/{made.id}", headers=agent)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "sessions_unavailable"
    process.gone = False
    assert (await cluster.http.get(f"{url}/{made.id}", headers=agent)).status_code == 200
    unknown = {"authorization": "Bearer sess_0"}
    assert (await cluster.http.get(f"{url}/sess_0", headers=unknown)).status_code == 401


async def test_a_call_whose_end_was_not_heard_ends_with_the_next_one(process):
    router = SharedSessions(CONFIG, process)
    first, second = [(await router.create({})).id for _ in range(2)]
    calls = [await router.begin(session) for session in (first, second)]
    process.gone = True
    await router.end(first, calls[0].number, None)
    process.gone = False
    assert (await router.get(first)).open_calls == 1
    await router.end(second, calls[1].number, None)
    assert [(await router.get(session)).open_calls for session in (first, second)] == [0, 0]


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(lost_routers, "LOOK_S", 0.0)


async def _begun(process):
    """A session with an open call at each of two routers."""
    routers = {name: SharedSessions(CONFIG, process, name) for name in "ab"}
    session = (await routers["a"].create({})).id
    for router in routers.values():
        await router.begin(session)
    return session


async def test_calls_of_a_router_that_died_are_over(process, at_once):
    session = await _begun(process)
    process.routers = {"b", "c"}
    async with asyncio.timeout(300):
        while (found := await process.sessions.get(session)).open_calls == 2:
            pass
    assert (found.open_calls, found.unrecorded_calls) == (1, 1)


@pytest.mark.parametrize("unknown", [None, set()])
async def test_while_serve_does_not_say_which_routers_there_are_none_has_died(
    process, at_once, unknown
):
    session = await _begun(process)
    process.routers = unknown
    for _ in range(2):  # the second look comes after what the first one has led to
        process.looked.clear()
        await asyncio.wait_for(process.looked.wait(), 300)
    assert (await process.sessions.get(session)).open_calls == 2


class Counting:
    """Replicas that count tokens."""

    config = CONFIG

    async def ask(self, path, body, *, model, session):
        self.asked = path, json.loads(body)["model"], model, session
        return {"input_tokens": 3}


@pytest.mark.parametrize("by", ["key", "header"])
async def test_whatever_model_an_offered_sessions_calls_name_the_offers_model_is_asked(by):
    sessions, replicas = SharedSessions(CONFIG, Process()), Counting()
    app = FastAPI()
    app.include_router(forwarded_routes(replicas, sessions))
    offer = SessionOffer(task={}, run="r", model="policy", max_tokens=4)
    offered, made = (await sessions.create({}, offer)).id, (await sessions.create({})).id
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")
    for session, asked in ((offered, "policy"), (made, "claude"), ("episode-7", "claude")):
        headers = {SESSION_HEADER: session}
        if by == "key" and session.startswith("sess_"):
            headers = {"x-api-key": session}
        path = "/v1/messages/count_tokens"
        answer = await http.post(path, json={"model": "claude"}, headers=headers)
        assert answer.json() == {"input_tokens": 3}
        assert replicas.asked == (path, asked, asked, session)
