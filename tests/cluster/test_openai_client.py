"""The `openai` client against the router."""

import openai
import pytest

from tests.cluster.conftest import MODEL_NAME, Cluster

QUESTION = [{"role": "user", "content": "larger of a and 7, times c"}]


def test_a_chat_answers_the_same_whole_and_streamed(cluster: Cluster) -> None:
    whole = cluster.openai.chat.completions.create(
        model=MODEL_NAME, messages=QUESTION, temperature=0, max_tokens=16
    )
    pieces = list(
        cluster.openai.chat.completions.create(
            model=MODEL_NAME,
            messages=QUESTION,
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    streamed = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert whole.choices[0].message.content
    assert streamed == whole.choices[0].message.content
    assert pieces[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 1


def test_a_completion_answers_the_same_whole_and_streamed(cluster: Cluster) -> None:
    whole = cluster.openai.completions.create(
        model=MODEL_NAME, prompt="return max(", temperature=0, max_tokens=8
    )
    pieces = cluster.openai.completions.create(
        model=MODEL_NAME, prompt="return max(", temperature=0, max_tokens=8, stream=True
    )
    streamed = "".join(piece.choices[0].text for piece in pieces if piece.choices)
    assert whole.choices[0].text
    assert streamed == whole.choices[0].text


def test_the_models_are_listed(cluster: Cluster) -> None:
    assert [model.id for model in cluster.openai.models.list()] == [MODEL_NAME]


def test_calls_of_one_session_stay_on_one_replica(cluster: Cluster) -> None:
    served = set()
    for _ in range(6):
        raw = cluster.openai.chat.completions.with_raw_response.create(
            model=MODEL_NAME,
            messages=QUESTION,
            max_tokens=4,
            extra_headers={"x-session-id": "one-episode"},
        )
        served.add(raw.headers["x-millrace-replica"])
    assert len(served) == 1


def test_a_wrong_model_name_is_refused_in_openais_shape(cluster: Cluster) -> None:
    with pytest.raises(openai.NotFoundError, match="no_such_model"):
        cluster.openai.chat.completions.create(model="no_such_model", messages=QUESTION)
