"""What a client gets from healthy replicas, through the real openai client."""

import json

import openai
import pytest

from services.protocol.router import TrajectoryFields

ASK = [{"role": "user", "content": "grüße 世界!"}]


async def test_a_chat_answer_has_openais_shape(cluster):
    await cluster.start()
    raw = await cluster.client.chat.completions.with_raw_response.create(
        model="test-model", messages=ASK, extra_headers={"x-session-id": "s1"}
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == "agrüße 世界!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.completion_tokens == len("agrüße 世界!".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-millrace-replica"] in {"replica-0", "replica-1"}
    assert raw.headers["x-millrace-choice"] == "new"


async def test_a_stream_of_tokens_spells_the_same_answer_and_ends_with_usage(cluster):
    await cluster.start()
    stream = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    events = [event async for event in stream]
    texts = [event.choices[0].delta.content for event in events if event.choices]
    assert "".join(texts) == "agrüße 世界!"
    assert len(texts) > 5
    assert events[0].choices[0].delta.role == "assistant"
    finishes = [event.choices[0].finish_reason for event in events if event.choices]
    assert finishes[-1] == "stop"
    assert not any(finishes[:-1])
    assert events[-1].usage.completion_tokens == 17


@pytest.mark.parametrize("penalty", [0, 0.5], ids=["continued", "begun again"])
@pytest.mark.parametrize("tokens_per_chunk", [1, 3])
async def test_usage_in_every_event_counts_each_token_once(
    cluster, fault, penalty, tokens_per_chunk
):
    """Also after a loss, before or after the client has seen something."""
    await cluster.start(eject_after=1000)
    for replica in cluster.replicas:
        replica.tokens_per_chunk = tokens_per_chunk
    for after in (0, 3, 12):
        cluster.faults.append(fault("drop", after))
        stream = await cluster.client.chat.completions.create(
            model="test-model",
            messages=ASK,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
            presence_penalty=penalty,
            stop=["never said"],
        )
        made = [event.usage.completion_tokens async for event in stream]
        assert made == sorted(made)
        assert made[-2:] == [17, 17]
        assert not cluster.faults


async def test_completions_have_their_own_shape_and_logprob_columns(cluster):
    await cluster.start()
    answer = await cluster.client.completions.create(
        model="test-model", prompt="hello", max_tokens=3, logprobs=1
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("ahe", "length")
    assert choice.logprobs.tokens == ["a", "h", "e"]
    assert choice.logprobs.text_offset == [0, 1, 2]
    assert [list(top) for top in choice.logprobs.top_logprobs] == [["a"], ["h"], ["e"]]
    stream = await cluster.client.completions.create(
        model="test-model", prompt="hello", max_tokens=3, logprobs=1, stream=True
    )
    parts = [event.choices[0] async for event in stream]
    assert "".join(part.text for part in parts) == "ahe"
    assert [at for part in parts for at in part.logprobs.text_offset] == [0, 1, 2]


async def test_the_default_of_sixteen_tokens_is_kept(cluster):
    """Render leaves out a max_tokens equal to the engine's default; it still holds."""
    await cluster.start()
    answer = await cluster.client.completions.create(model="test-model", prompt="x" * 40)
    assert answer.usage.completion_tokens == 16


async def test_chat_logprobs_come_only_when_asked(cluster):
    await cluster.start()
    plain = await cluster.client.chat.completions.create(model="test-model", messages=ASK)
    assert plain.choices[0].logprobs is None
    not_asked = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, logprobs=0, max_tokens=2
    )
    assert not_asked.choices[0].logprobs is None
    asked = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, logprobs=True, max_tokens=2
    )
    content = asked.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["a", "g"]
    assert all(entry.top_logprobs == [] for entry in content)
    top = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, logprobs=True, top_logprobs=1, max_tokens=2
    )
    assert len(top.choices[0].logprobs.content[0].top_logprobs) == 1


async def test_every_token_knows_its_policy_version(cluster):
    """Also tokens sampled after an update in the middle of an answer."""
    await cluster.start(replicas=1)
    cluster.replicas[0].switch_after = 6
    answer = await cluster.client.chat.completions.create(
        model="test-model",
        messages=ASK,
        n=2,
        extra_body={"return_trajectory": True},
    )
    for choice in answer.choices:
        fields = TrajectoryFields.model_validate(choice.model_extra["trajectory"])
        trajectory = fields.to_trajectory(finish_reason="stop", text=choice.message.content)
        spans = [(s.version, s.start, s.end, s.replica_id) for s in trajectory.spans]
        assert spans == [(1, 0, 6, "replica-0"), (2, 6, 17, "replica-0")]


async def test_choices_of_a_group_come_as_they_finish(cluster):
    await cluster.start(replicas=1)
    body = {
        "model": "test-model",
        "messages": ASK,
        "n": 3,
        "stream": True,
        "stream_by": "choice",
        "return_trajectory": True,
        "stream_options": {"include_usage": True},
    }
    events = await _events(cluster, body)
    *choices, usage = [json.loads(event) for event in events[:-1]]
    assert events[-1] == "[DONE]"
    assert {c["choices"][0]["index"] for c in choices} == {0, 1, 2}
    for event in choices:
        (choice,) = event["choices"]
        text = choice["message"]["content"]
        assert choice["delta"] == choice["message"]
        assert text == "abc"[choice["index"]] + "grüße 世界!"
        fields = TrajectoryFields.model_validate(choice["trajectory"])
        assert fields.to_trajectory(finish_reason=choice["finish_reason"], text=text)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3 * 17


async def _events(cluster, body):
    url = f"{cluster.url}/v1/chat/completions"
    async with cluster.http.stream("POST", url, json=body) as got:
        assert got.status_code == 200
        return [line[6:] async for line in got.aiter_lines() if line]


async def test_models_lists_what_leased_replicas_serve(cluster):
    await cluster.start()
    models = await cluster.client.models.list()
    assert [model.id for model in models.data] == ["test-model"]
    await cluster.bus.put(*(replica.member(leased=False) for replica in cluster.replicas))
    await cluster.until_leased()
    assert (await cluster.client.models.list()).data == []


async def test_health_counts_members_and_fails_without_a_lease(cluster):
    await cluster.start()
    await cluster.bus.put(cluster.replicas[0].member(leased=False))
    await cluster.until_leased("replica-1")
    others = {"members": 2, "external_backends": 0}
    got = await cluster.http.get(f"{cluster.url}/health")
    assert (got.status_code, got.json()) == (200, {"leased_replicas": 1, **others})
    await cluster.bus.put(cluster.replicas[1].member(leased=False))
    await cluster.until_leased()
    got = await cluster.http.get(f"{cluster.url}/health")
    assert (got.status_code, got.json()) == (503, {"leased_replicas": 0, **others})


async def test_a_replicas_own_refusal_is_passed_on(cluster):
    await cluster.start()
    with pytest.raises(openai.BadRequestError) as refusal:
        await cluster.client.chat.completions.create(
            model="test-model", messages=ASK, temperature=-1
        )
    assert refusal.value.body["message"] == "temperature must be non-negative"
    assert refusal.value.body["param"] == "temperature"


async def test_a_model_nobody_serves_is_not_found(cluster):
    await cluster.start()
    await cluster.client.models.list()
    with pytest.raises(openai.NotFoundError, match="test-model"):
        await cluster.client.chat.completions.create(model="other", messages=ASK)


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("chat/completions", {"stream_by": "choice"}, "stream_by"),
        ("chat/completions", {"stream_by": "word", "stream": True}, "stream_by"),
        ("chat/completions", {"return_trajectory": 3}, "return_trajectory"),
        ("completions", {"prompt": ["a", "b"], "return_trajectory": True}, "prompt"),
        ("completions", {"prompt": "a", "echo": True, "return_trajectory": True}, "echo"),
        ("chat/completions", {"prompt_logprobs": 0, "return_trajectory": True}, "prompt_logprobs"),
        (
            "completions",
            {"prompt": "a", "stream_by": "choice", "stream": True, "suffix": "b"},
            "suffix",
        ),
    ],
)
async def test_what_is_not_supported_is_refused_with_its_field(cluster, path, change, field):
    await cluster.start(replicas=1)
    body = {"model": "test-model", "messages": ASK} | change
    got = await cluster.http.post(f"{cluster.url}/v1/{path}", json=body)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == field
    assert not cluster.replicas[0].bodies
