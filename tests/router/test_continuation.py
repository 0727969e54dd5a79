"""What a replica is asked for after a cut."""

import pytest

from services.router.answering.continuation import (
    continuation,
    finished_at_cut,
    history_dependence,
    segment_seed,
)
from services.router.answering.journal import ChoiceJournal

NO_END = frozenset()


def _request(**params):
    params.setdefault("max_tokens", 16)
    return {"token_ids": [10, 11], "sampling_params": params, "model": "m", "request_id": "id-1"}


def _journal(*tokens, index=0):
    journal = ChoiceJournal(index)
    journal.begin_segment("r0")
    journal.token_ids += tokens
    return journal


def test_budgets_shrink_by_what_was_made_and_tokens_are_never_encoded_again():
    request = _request(max_tokens=9, min_tokens=4, n=3, stop=["x"], output_text_buffer_length=0)
    rest = continuation(request, _journal(20, 21, 22, index=1))
    assert rest["token_ids"] == [10, 11, 20, 21, 22]
    params = rest["sampling_params"]
    assert (params["max_tokens"], params["min_tokens"], params["n"]) == (6, 1, 1)
    assert params["stop"] == []
    assert "output_text_buffer_length" not in params
    assert request["sampling_params"]["max_tokens"] == 9
    assert request["token_ids"] == [10, 11]


def test_a_choice_without_tokens_starts_as_it_would_have():
    rest = continuation(_request(max_tokens=9, stop=["x"], seed=4), _journal(index=2))
    assert rest["token_ids"] == [10, 11]
    assert rest["sampling_params"]["stop"] == ["x"]
    assert rest["sampling_params"]["seed"] == 6


def test_no_two_segments_share_a_random_stream():
    seeds = {segment_seed(5, index, segment) for index in range(8) for segment in range(1, 8)}
    assert len(seeds) == 56
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert not seeds & set(range(5, 13))


@pytest.mark.parametrize(
    ("params", "tokens", "end"),
    [
        ({"max_tokens": 2}, (1, 2), ("length", None)),
        ({"max_tokens": 3}, (1, 2), None),
        ({"max_tokens": 9, "stop_token_ids": [2]}, (1, 2), ("stop", 2)),
        ({"max_tokens": 2, "stop_token_ids": [2]}, (1, 2), ("stop", 2)),
        ({"max_tokens": 9, "stop_token_ids": [2], "min_tokens": 2}, (1, 2), None),
        ({"max_tokens": 9}, (1, 99), ("stop", None)),
        ({"max_tokens": 9, "ignore_eos": True}, (1, 99), None),
        ({"max_tokens": 9}, (), None),
    ],
)
def test_a_complete_choice_is_recognised_at_the_cut(params, tokens, end):
    assert finished_at_cut(_request(**params), _journal(*tokens), frozenset({99})) == end


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"presence_penalty": 0.0, "repetition_penalty": 1.0, "bad_words": []}, None),
        ({"temperature": 0.7, "top_p": 0.9, "logit_bias": {"3": 1.0}}, None),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, None),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"bad_words": ["x"]}, "bad_words"),
    ],
)
def test_what_looks_at_the_generated_part_hinders_a_cut(params, name):
    assert history_dependence(_request(**params)) == name
