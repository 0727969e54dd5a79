"""In which steps a streamed answer is parsed; the parsing itself is tested on a real vLLM."""

import itertools
import json
import random
from types import SimpleNamespace

import pytest

from services.protocol.rollout_server import COUNTED, PARSE_ANSWER, REASONING_TOKENS
from services.router.answering.answer_parser import AnswerParser, _joined, _steps
from services.router.answering.journal import ChoiceJournal, Piece
from services.router.request.client_request import ClientRequest


def _piece(journal, *texts, finished=False):
    entries = [{"token": text, "logprob": -1.0} for text in texts]
    journal.token_ids += [len(text) for text in texts]
    made = len(journal.token_ids)
    return Piece(journal, "", journal.token_ids[made - len(texts) :], entries, finished, made)


def _texts(steps):
    return [[entry["token"] for entry in step.entries] for step in steps]


@pytest.mark.parametrize(
    "mark", ["<think>", "</think>\n", "<|channel|>", "[TOOL_CALLS]", "◁think▷", "<｜tool▁sep｜>"]
)
def test_marks_are_parsed_by_themselves_and_what_is_between_them_together(mark):
    journal = ChoiceJournal(0)
    batch = [_piece(journal, "a", "b"), _piece(journal, "c", mark, "d"), _piece(journal, "e")]
    assert _texts(_steps(batch)) == [["a", "b", "c"], [mark], ["d", "e"]]


@pytest.mark.parametrize("text", ["<", ">", "a<b>", "[]", "< b", "b >"])
def test_ordinary_text_is_no_mark(text):
    journal = ChoiceJournal(0)
    assert len(_steps([_piece(journal, "a", text), _piece(journal, "b")])) == 1


def test_the_last_token_is_parsed_by_itself():
    journal = ChoiceJournal(0)
    steps = _steps([_piece(journal, "a", "b"), _piece(journal, "c", "d", finished=True)])
    assert _texts(steps) == [["a", "b", "c"], ["d"]]
    assert [step.finished for step in steps] == [False, True]
    (end,) = _steps([_piece(journal, finished=True)])
    assert end.finished


def test_no_token_is_lost_or_moved_to_another_choice():
    chance = random.Random(3)
    journals = [ChoiceJournal(0), ChoiceJournal(1)]
    said = {0: [], 1: []}
    batch = []
    for _ in range(200):
        journal = chance.choice(journals)
        texts = [chance.choice(["a", "<x>", "</x>", "b"]) for _ in range(chance.randrange(4))]
        said[journal.index] += texts
        batch.append(_piece(journal, *texts))
    for index, texts in said.items():
        steps = [step for step in _steps(batch) if step.journal.index == index]
        assert [text for step in _texts(steps) for text in step] == texts
        assert [len(text) for text in texts] == [token for s in steps for token in s.token_ids]
        ends = itertools.accumulate(len(step.token_ids) for step in steps)
        assert [step.made for step in steps if step.token_ids] == sorted(set(ends) - {0})


def test_parsing_takes_a_fifth_of_the_time_at_most_however_slow_it_is():
    parser = AnswerParser(SimpleNamespace(body={}), {"token_ids": []}, model="m", replicas=None)
    for busy_s in (0.0, 0.1, 10.0):
        parser._busy_s = busy_s
        assert parser._pause_s() == 4 * busy_s


def test_a_streamed_message_is_what_its_deltas_add_up_to():
    deltas = [
        {"reasoning": "two "},
        {"reasoning": "numbers"},
        {"content": "So"},
        {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "sub", "arguments": "{}"}}]},
        {},
    ]
    message = {"role": "assistant"}
    for delta in deltas:
        message = _joined(message, delta)
    assert (message["reasoning"], message["content"]) == ("two numbers", "So")
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "sub", "arguments": "{}"},
    ]


class _Parsing:
    """A replica that parses and counts."""

    async def ask(self, path, body, **_):
        self.path, self.body = path, json.loads(body)
        return {"choices": [{"message": {"content": "x"}}], REASONING_TOKENS: 2}


@pytest.mark.parametrize(
    ("endpoint", "body", "reasons", "counts"),
    [
        ("chat", {"messages": []}, True, True),
        ("chat", {"messages": []}, False, False),
        ("chat", {"messages": [], "stream": True}, True, False),
        (
            "chat",
            {"messages": [], "stream": True, "stream_options": {"include_usage": True}},
            True,
            True,
        ),
        ("responses", {"input": "x", "stream": True}, True, True),
        ("messages", {"messages": []}, True, False),
    ],
)
async def test_reasoning_is_counted_where_the_client_is_told(endpoint, body, reasons, counts):
    ask = ClientRequest.parse(endpoint, body, {}, max_choices=1)
    request = {"token_ids": [1], "reasoning_parser_kwargs": {} if reasons else None}
    replica, journal = _Parsing(), ChoiceJournal(0)
    journal.token_ids, journal.finish_reason = [4, 5, 6], "stop"
    await AnswerParser(ask, request, model="m", replicas=replica).message(journal)
    assert (replica.path == PARSE_ANSWER) is counts
    assert replica.body.get(COUNTED) == ([4, 5, 6] if counts else None)
    assert journal.reasoning_tokens == (2 if counts else None)
