"""What a client gets of an answer that was begun and cannot go on."""

import json

import openai
import pytest

from services.protocol.router import TrajectoryFields

ASK = [{"role": "user", "content": "hello"}]
MADE = "ahel"


async def _failed(cluster, **extra):
    with pytest.raises(openai.InternalServerError, match="given up") as failure:
        await cluster.client.chat.completions.create(
            model="test-model", messages=ASK, extra_body=extra
        )
    return failure.value.body


@pytest.fixture
async def broken(cluster, fault):
    await cluster.start(max_retries=0)
    cluster.faults.append(fault("drop", len(MADE)))
    return cluster


async def test_an_answer_that_fails_tells_what_was_generated(broken):
    generated = (await _failed(broken))["generated"]
    assert generated["choices"] == [{"index": 0, "text": MADE}]
    assert generated["usage"]["completion_tokens"] == len(MADE)
    assert generated["usage"]["prompt_tokens"] > 0


async def test_its_tokens_and_its_trajectory_come_as_asked(broken):
    error = await _failed(broken, return_token_ids=True, return_trajectory=True)
    (choice,) = error["generated"]["choices"]
    assert choice["token_ids"] == list(MADE.encode())
    fields = TrajectoryFields.model_validate(choice["trajectory"])
    trajectory = fields.to_trajectory(finish_reason="failed", text=choice["text"])
    assert len(choice["trajectory"]["logprobs"]) == len(MADE)
    assert [(span.start, span.end) for span in trajectory.spans] == [(0, len(MADE))]


async def test_a_stream_by_choice_tells_it_of_choices_that_were_not_sent(cluster, fault):
    await cluster.start(max_retries=0)
    cluster.faults.append(fault("drop", 2 * (len("ahello") + 1) - 1))
    body = {"model": "test-model", "messages": ASK, "n": 2, "stream": True, "stream_by": "choice"}
    got = await cluster.http.post(f"{cluster.url}/v1/chat/completions", json=body)
    first, error = [json.loads(event[6:]) for event in got.text.split("\n\n")[:2]]
    assert first["choices"][0]["index"] == 0
    assert error["error"]["generated"]["choices"] == [{"index": 1, "text": "bhello"}]


async def test_an_answer_that_fails_before_its_first_token_has_nothing_to_tell(cluster, fault):
    await cluster.start(max_retries=0)
    cluster.faults.append(fault("drop", 0))
    assert "generated" not in await _failed(cluster)
