"""Recorded sessions of several routers: in one process, which any of them may lose."""

import pickle

import openai
import pytest

from services.protocol.errors import NotReady
from services.protocol.router import SESSION_HEADER
from services.protocol.session import SessionEnding
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.shared_sessions import SharedSessions

CONFIG = RouterConfig(replicas=2)


class Process:
    """Everything that goes in or comes out crosses a process boundary."""

    def __init__(self):
        self.sessions, self.gone, self.calls = Sessions(CONFIG), False, []

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
