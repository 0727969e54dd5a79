"""Prompts that begin with the recorded tokens of their conversation, though a template forgets."""

import pytest

from services.protocol.router import SESSION_HEADER
from services.router.config import RouterConfig
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.shared_sessions import SharedSessions

from .test_sessions import EOS, MARK, MODEL, Desk, _say, _user
from .test_shared_sessions import Process

THOUGHTS = [_user("hm</think>one"), _user("so</think>two"), _user("well</think>three")]


async def _start(cluster, prompts="recorded", **config):
    await cluster.start(session_prompts=prompts, **config)
    for replica in cluster.replicas:
        replica.forgets = True
    desk = Desk(cluster)
    return desk, await desk.make()


async def _episode(cluster, name, *, drops_thoughts=True, **how):
    """What each answer carried of its own tokens, of an agent that may drop its thoughts."""
    carried, messages = [], []
    for asked in THOUGHTS:
        messages = [*messages, asked]
        answer = await _say(cluster, name, messages, extra_body={"return_trajectory": True, **how})
        carried.append(answer.choices[0].model_extra["trajectory"])
        text = answer.choices[0].message.content
        said = text.rpartition("</think>")[2] if drops_thoughts else text
        messages = [*messages, {"role": "assistant", "content": said}]
    return carried


@pytest.mark.parametrize("drops_thoughts", [True, False])
async def test_thoughts_stay_and_every_turn_continues_the_trajectory(cluster, drops_thoughts):
    desk, name = await _start(cluster)
    await _episode(cluster, name, drops_thoughts=drops_thoughts)
    done = await desk.finish(name)
    assert (done.calls, done.cuts) == ({"first": 1, "extended": 2}, {})
    (made,) = done.trajectories
    sampled = [[*f"a{asked['content']}".encode(), EOS] for asked in THOUGHTS]
    put = [[*f"user\n{asked['content']}".encode(), MARK] for asked in THOUGHTS]
    assert made.prompt_token_ids == put[0]
    assert made.response_token_ids == sampled[0] + put[1] + sampled[1] + put[2] + sampled[2]
    assert sum(made.loss_mask) == sum(map(len, sampled))


async def test_the_template_cuts_each_turn_and_the_session_says_so(cluster):
    desk, name = await _start(cluster, "template")
    await _episode(cluster, name)
    done = await desk.finish(name)
    assert (done.calls, done.cuts) == ({"first": 1, "retokenized": 2}, {"template": 2})
    assert [made.cut for made in done.trajectories] == [None, "template", "template"]


async def test_an_engine_gets_the_recorded_tokens_also_after_a_loss_and_an_update(cluster, fault):
    desk, name = await _start(cluster)
    cluster.faults += [fault("drop", 3), fault("status"), fault(""), fault("drop", 5)]
    cluster.replicas[0].switch_after = 4
    carried = await _episode(cluster, name)
    assert not cluster.faults
    (made,) = (await desk.finish(name)).trajectories
    whole = made.prompt_token_ids + made.response_token_ids
    for part in carried:
        end = len(part["prompt_token_ids"]) + len(part["token_ids"])
        assert whole[:end] == part["prompt_token_ids"] + part["token_ids"]
    for replica in cluster.replicas:
        for body in replica.bodies:
            assert body["token_ids"] == whole[: len(body["token_ids"])]


async def test_streams_go_on_from_their_tokens_too(cluster):
    desk, name = await _start(cluster)
    first = await _say(cluster, name, THOUGHTS[:1], stream=True)
    text = "".join([event.choices[0].delta.content or "" async for event in first])
    said = {"role": "assistant", "content": text.rpartition("</think>")[2]}
    second = await _say(cluster, name, [THOUGHTS[0], said, THOUGHTS[1]], stream=True)
    assert [event async for event in second]
    assert (await desk.finish(name)).calls == {"first": 1, "extended": 1}


@pytest.mark.parametrize(
    ("said", "more", "cuts"),
    [
        ("atwo", {}, {}),  # another text is another conversation
        ("no</think>one", {}, {"edited": 1}),
        ("one", {"reasoning_effort": "low"}, {"settings": 1}),
        ("one", {"extra_body": {"chat_template_kwargs": {"thinking": True}}}, {"settings": 1}),
    ],
)
async def test_what_a_client_changed_cuts_with_a_reason(cluster, said, more, cuts):
    desk, name = await _start(cluster)
    await _say(cluster, name, THOUGHTS[:1])
    messages = [THOUGHTS[0], {"role": "assistant", "content": said}, THOUGHTS[1]]
    await _say(cluster, name, messages, **more)
    done = await desk.finish(name)
    assert done.cuts == cuts
    assert [made.cut for made in done.trajectories] == [None, next(iter(cuts), None)]


async def test_an_answer_that_was_changed_after_others_that_were_not_is_told(cluster):
    desk, name = await _start(cluster)
    await _episode(cluster, name)
    said = [{"role": "assistant", "content": text} for text in ("one", "no</think>two")]
    await _say(cluster, name, [THOUGHTS[0], said[0], THOUGHTS[1], said[1], _user("more")])
    done = await desk.finish(name)
    assert done.cuts == {"edited": 1}
    assert done.trajectories[-1].cut == "edited"


async def test_a_reason_of_the_replica_is_kept_and_the_template_renders(cluster):
    desk, name = await _start(cluster)
    for replica in cluster.replicas:
        replica.cut = "end_of_turn"
    await _episode(cluster, name)
    done = await desk.finish(name)
    assert done.cuts == {"end_of_turn": 2}
    assert (await desk.listed())[0].cuts == {"end_of_turn": 2}


async def _post(cluster, path, name, body):
    headers = {SESSION_HEADER: name}
    got = await cluster.http.post(f"{cluster.url}{path}", json=body, headers=headers)
    assert got.status_code == 200, got.text


@pytest.mark.parametrize(
    ("path", "field", "longest"),
    [("/v1/messages", "messages", "max_tokens"), ("/v1/responses", "input", "max_output_tokens")],
)
async def test_other_apis_go_on_from_their_tokens(cluster, path, field, longest):
    desk, name = await _start(cluster)
    asked = [THOUGHTS[0], {"role": "assistant", "content": "one"}, THOUGHTS[1]]
    for messages in (asked[:1], asked, [_user("other")]):
        await _post(cluster, path, name, {"model": MODEL, field: messages, longest: 40})
    done = await desk.finish(name)
    assert (done.calls, done.cuts) == ({"first": 1, "extended": 1, "other_history": 1}, {})


async def test_a_prompt_of_the_clients_own_is_told_apart_and_another_one_is_no_cut(cluster):
    desk, name = await _start(cluster)
    asked = [THOUGHTS[0], {"role": "assistant", "content": "one"}, THOUGHTS[1]]
    await _say(cluster, name, asked[:1])
    for messages in (asked, [_user("other")]):
        body = {"model": MODEL, "messages": messages, "tokens": [1, 2, 3], "max_tokens": 40}
        await _post(cluster, "/v1/chat/completions/tokens", name, body)
    done = await desk.finish(name)
    assert (done.calls, done.cuts) == (
        {"first": 1, "retokenized": 1, "other_history": 1},
        {"api": 1},
    )


async def _post(cluster, path, name, body):
    headers = {SESSION_HEADER: name}
    got = await cluster.http.post(f"{cluster.url}{path}", json=body, headers=headers)
    assert got.status_code == 200, got.text


async def test_a_later_question_may_go_back_to_an_earlier_answer(cluster):
    desk, name = await _start(cluster)
    await _episode(cluster, name)
    said = {"role": "assistant", "content": "one"}
    await _say(cluster, name, [THOUGHTS[0], said, _user("otherwise")])
    done = await desk.finish(name)
    assert (done.calls, done.cuts) == ({"first": 1, "extended": 2, "branched": 1}, {})


async def test_several_routers_go_on_from_the_tokens_that_any_of_them_recorded(cluster):
    process = Process()
    config = RouterConfig(replicas=2, session_prompts="recorded")
    await cluster.start(sessions=SharedSessions(config, process), session_prompts="recorded")
    for replica in cluster.replicas:
        replica.forgets = True
    desk = Desk(cluster)
    name = await desk.make()
    await _episode(cluster, name)
    assert (await desk.finish(name)).calls == {"first": 1, "extended": 2}


async def test_a_session_on_disk_goes_on_after_a_restart(tmp_path):
    from services.protocol.session import SessionOffer
    from services.router.trajectories.history import History
    from services.router.trajectories.trajectory_tree import RecordedCall, RecordedChoice

    config = RouterConfig(sessions_dir=str(tmp_path), session_prompts="recorded")
    sessions = Sessions(config)
    offer = SessionOffer(task={}, run="r", model=MODEL, max_tokens=9)
    name = (await sessions.create({}, offer)).id
    await sessions.take(None)
    ask = {"model": MODEL, "messages": [_user("one")]}
    begun = await sessions.begin(name, History.of(ask))
    answer = {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    choice = RecordedChoice(
        token_ids=[5, 6],
        logprobs=[-1.0, -1.0],
        spans=[(1, 0, 2, "a")],
        finish_reason="stop",
        text="",
        message=answer,
    )
    call = RecordedCall(prompt_token_ids=[1, 2], choices=[choice], history=History.of(ask))
    await sessions.end(name, begun.number, call)
    sessions.close()
    again = Sessions(config)
    back = {**answer, "content": "", "reasoning": None}
    later = {**ask, "messages": [_user("one"), back, {"role": "tool", "content": "2"}]}
    start = (await again.begin(name, History.of(later))).start
    assert (start.token_ids, start.messages) == ([1, 2, 5, 6], 2)
    again.close()
