"""The token journal of one choice."""

import pytest

from services.router.answering.journal import ChoiceJournal, Diverged
from services.router.errors import UpstreamBroken


def _chunk(tokens, spans, **more):
    entries = [{"token": "x", "logprob": -0.5 * token, "top_logprobs": []} for token in tokens]
    versions = [{"version": v, "start": s, "end": e} for v, s, e in spans]
    return {
        "token_ids": tokens,
        "logprobs": {"content": entries},
        "weight_versions": versions,
    } | more


def test_tokens_logprobs_and_versions_stay_in_step_across_replicas():
    journal = ChoiceJournal(0)
    journal.begin_segment("r0")
    journal.take(_chunk([1, 2], [("7", 0, 2)]))
    journal.take(_chunk([3], [("7", 0, 2), ("8", 2, 3)]))
    journal.begin_segment("r1")
    journal.take(_chunk([4], [("8", 0, 1)]))
    journal.take(_chunk([5], [("8", 0, 2)], finish_reason="length"))
    assert journal.token_ids == [1, 2, 3, 4, 5]
    assert journal.logprobs == [-0.5, -1.0, -1.5, -2.0, -2.5]
    assert journal.spans == [(7, 0, 2, "r0"), (8, 2, 3, "r0"), (8, 3, 5, "r1")]
    assert journal.finish_reason == "length"


def test_a_segment_without_tokens_leaves_no_span():
    journal = ChoiceJournal(0)
    journal.begin_segment("r0")
    journal.begin_segment("r1")
    journal.take(_chunk([1], [("7", 0, 1)]))
    assert journal.spans == [(7, 0, 1, "r1")]


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [("default", 0, 2)],
        [("7", 0, 1)],
        [("7", 0, 3)],
        [("7", 1, 2)],
        [("7", 0, 1), ("8", 0, 2)],
    ],
)
def test_an_unlabelled_token_is_never_written_down(spans):
    journal = ChoiceJournal(0)
    journal.begin_segment("r0")
    with pytest.raises(UpstreamBroken, match="unlabelled"):
        journal.take(_chunk([1, 2], spans))
    assert journal.token_ids == journal.logprobs == journal.spans == []


def test_a_token_without_its_logprob_is_never_written_down():
    journal = ChoiceJournal(0)
    journal.begin_segment("r0")
    chunk = _chunk([1, 2], [("7", 0, 2)])
    chunk["logprobs"]["content"].pop()
    with pytest.raises(UpstreamBroken, match="malformed"):
        journal.take(chunk)
    absent = _chunk([1], [("7", 0, 1)])
    absent["logprobs"]["content"][0]["logprob"] = -9999.0
    with pytest.raises(UpstreamBroken, match="unlabelled"):
        journal.take(absent)
    assert not journal.token_ids


def test_dropping_tokens_after_the_end_clips_everything():
    journal = ChoiceJournal(0, keep_entries=True)
    journal.begin_segment("r0")
    journal.take(_chunk([1, 2], [("7", 0, 2)]))
    journal.begin_segment("r1")
    journal.take(_chunk([3, 4], [("7", 0, 1), ("8", 1, 2)]))
    journal.keep_tokens(3)
    assert journal.token_ids == [1, 2, 3]
    assert len(journal.entries) == len(journal.logprobs) == 3
    assert journal.spans == [(7, 0, 2, "r0"), (7, 2, 3, "r1")]


@pytest.mark.parametrize(("streamed", "kept"), [(False, [1]), (True, [])])
def test_an_abort_keeps_the_tokens_that_came_with_it_unless_the_client_waits_for_them(
    streamed, kept
):
    journal = ChoiceJournal(0, streamed=streamed)
    journal.begin_segment("r0")
    with pytest.raises(UpstreamBroken, match="abort"):
        journal.take(_chunk([1], [("7", 0, 1)], finish_reason="abort"))
    assert journal.token_ids == kept
    assert journal.finish_reason is None


def test_a_replay_adds_only_what_is_new():
    journal = ChoiceJournal(0)
    journal.begin_segment("r0")
    journal.take(_chunk([1, 2, 3], [("7", 0, 3)]))
    journal.begin_segment("r1", replay=True)
    seen = journal.take(_chunk([1, 2], [("8", 0, 2)]))
    assert (seen.token_ids, seen.entries, seen.replayed) == ([], [], 2)
    across = journal.take(_chunk([3, 4], [("8", 0, 3), ("9", 3, 4)]))
    assert (across.token_ids, across.replayed) == ([4], 1)
    assert journal.take(_chunk([5], [("8", 0, 3), ("9", 3, 5)])).token_ids == [5]
    assert journal.token_ids == [1, 2, 3, 4, 5]
    assert journal.logprobs == [-0.5, -1.0, -1.5, -2.0, -2.5]
    assert journal.spans == [(7, 0, 3, "r0"), (9, 3, 5, "r1")]


@pytest.mark.parametrize("chunk", [([1, 9], None), ([1], "stop")], ids=["other token", "early end"])
def test_a_replay_that_differs_is_noticed(chunk):
    tokens, finish = chunk
    journal = ChoiceJournal(0)
    journal.begin_segment("r0")
    journal.take(_chunk([1, 2, 3], [("7", 0, 3)]))
    journal.begin_segment("r1", replay=True)
    with pytest.raises(Diverged):
        journal.take(_chunk(tokens, [("7", 0, len(tokens))], finish_reason=finish))
    assert journal.token_ids == [1, 2, 3]
