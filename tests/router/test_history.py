"""In which ways a client may pass an answer back, and which of them are the same answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.trajectories.history import AnswerMark, History
from services.router.trajectories.trajectory_tree import (
    RecordedCall,
    RecordedChoice,
    TrajectoryTree,
)

USER = {"role": "user", "content": "add 1 and 2"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
SHOWN = {"content": None, "reasoning": "two numbers\n", "tool_calls": [CALL]}
THOUGHT = {"type": "thinking", "thinking": "two numbers", "signature": "s"}
BLOCK = {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1, "b": 2}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "3"}


def _passed(**changes):
    return {"role": "assistant", "content": "", "tool_calls": [CALL]} | changes


def _called(**function):
    return [{**CALL, "function": {**CALL["function"], **function}}]


@pytest.mark.parametrize(
    "message",
    [
        _passed(),
        _passed(content=None, reasoning="two numbers"),
        _passed(content=[{"type": "text", "text": ""}], reasoning_content="two numbers"),
        _passed(content="<think>\ntwo numbers\n</think>\n\n"),
        _passed(tool_calls=_called(arguments='{"b":2,"a":1}'), refusal=None, audio=None),
        _passed(tool_calls=[{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]),
        {"role": "assistant", "content": [THOUGHT, BLOCK]},
        {"role": "assistant", "content": [BLOCK | {"cache_control": {"type": "ephemeral"}}]},
    ],
)
def test_an_answer_is_known_with_its_thoughts_without_them_and_written_anew(message):
    assert AnswerMark.of(SHOWN).is_passed_back_as(message)


@pytest.mark.parametrize(
    "message",
    [
        USER,
        "text",
        _passed(tool_calls=[]),
        _passed(tool_calls=[CALL, CALL]),
        _passed(tool_calls=_called(name="multiply")),
        _passed(tool_calls=_called(arguments='{"a": 1}')),
        _passed(tool_calls=_called(arguments="not JSON")),
        _passed(content="It is 3."),
        _passed(content=[{"type": "image_url", "image_url": {"url": "data:,"}}]),
        _passed(reasoning="three numbers"),
        _passed(content="<think>three numbers</think>"),
        {"role": "assistant", "content": [THOUGHT]},
        {"role": "assistant", "content": [BLOCK, BLOCK]},
        {"role": "assistant", "content": [THOUGHT | {"thinking": "three numbers"}, BLOCK]},
    ],
)
def test_another_text_other_calls_and_other_thoughts_are_another_answer(message):
    assert not AnswerMark.of(SHOWN).is_passed_back_as(message)


@pytest.mark.parametrize("calls", [7, "x", {"a": 1}, [None], [{"function": [1]}], [{}, CALL]])
def test_what_is_no_tool_call_is_no_answer_and_no_error(calls):
    odd = _passed(tool_calls=calls)
    assert not AnswerMark.of(SHOWN).is_passed_back_as(odd)
    history = History.of({"messages": [USER, odd, None, [1], {"role": 3, "content": [4, {}]}]})
    assert not history.goes_on_from(History([USER]).mark, "another text")


def test_thoughts_in_the_text_may_be_left_out_as_well():
    mark = AnswerMark.of({"content": "two numbers</think>\n\nIt is 3."})
    for content in (
        "two numbers</think>It is 3.",
        "It is 3.",
        "<think>two numbers</think>It is 3.",
    ):
        assert mark.is_passed_back_as({"role": "assistant", "content": content}), content
    assert not mark.is_passed_back_as({"role": "assistant", "content": "</think>It is 4."})


def _recorded(tree, prompt, answer, messages, shown, **settings):
    choice = RecordedChoice(
        token_ids=answer,
        logprobs=[-1.0] * len(answer),
        spans=[(1, 0, len(answer), "a")],
        finish_reason="stop",
        text="two numbers</think>add(1, 2)",
        message=shown,
    )
    history = History.of({"messages": messages, **settings})
    tree.record(RecordedCall(prompt_token_ids=prompt, choices=[choice], history=history))


NAMES = ["role", "type", "content", "text", "tool_calls", "function", "arguments", "input", "name"]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["assistant", "tool_use", "{", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=12,
)


@given(
    body=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["messages", "input", "system"], ANY_JSON)
    )
)
def test_a_body_of_any_shape_is_read(body):
    """vLLM refuses what is no request, in its own words, after it was read here."""
    tree = TrajectoryTree()
    _recorded(tree, [1], [10], [USER], SHOWN)
    assert tree.start(History.of(body)) is None


def test_a_call_goes_on_from_the_longest_conversation_that_it_repeats():
    tree = TrajectoryTree()
    first, second = [USER], [USER, _passed(), RESULT]
    _recorded(tree, [1], [10, 11], first, SHOWN)
    _recorded(tree, [1, 10, 11, 2], [12], second, {"content": "It is 3."})
    answer = {"role": "assistant", "content": "It is 3."}
    for messages, tokens, known in [
        ([*second, answer, USER], [1, 10, 11, 2, 12], 4),
        ([*second, {**answer, "content": "It is 4."}, USER], [1, 10, 11], 2),
        ([*first, _passed(reasoning="two numbers"), RESULT], [1, 10, 11], 2),
    ]:
        start = tree.start(History.of({"messages": messages}))
        assert (start.token_ids, start.messages) == (tokens, known)
    assert tree.start(History.of({"messages": [*first, answer, USER]})) is None
    assert tree.start(History.of({"messages": first})) is None
    changed = [USER, _passed(), {**RESULT, "content": "4"}, answer]
    assert tree.start(History.of({"messages": changed})).messages == 2


def test_of_several_answers_the_one_that_is_passed_back_goes_on():
    tree = TrajectoryTree()
    for number, text in enumerate(("It is 3.", "It is 4.", "It is 3.")):
        _recorded(tree, [1], [10 + number], [USER], {"content": text})
    for text, token in [("It is 4.", 11), ("It is 3.", 12)]:
        messages = [USER, {"role": "assistant", "content": text}, USER]
        assert tree.start(History.of({"messages": messages})).token_ids == [1, token]


def test_marks_for_a_cache_change_nothing_and_another_system_does():
    tree = TrajectoryTree()
    result = {"type": "tool_result", "tool_use_id": "1", "content": "3"}
    marked = result | {"cache_control": {"type": "ephemeral"}}
    answer = {"role": "assistant", "content": [BLOCK]}
    said = {"role": "assistant", "content": [{"type": "text", "text": "It is 3."}]}
    asked = [USER, answer, {"role": "user", "content": [marked]}]
    _recorded(tree, [1], [10], asked, {"content": "It is 3."}, system="Be brief.")
    later = [USER, answer, {"role": "user", "content": [result]}, said, USER]
    assert tree.start(History.of({"messages": later, "system": "Be brief."})).messages == 4
    for text, start in [("Be brief.", None), ("Be long.", "settings")]:
        texts = ("x-anthropic-billing-header: 1", text)
        parts = [{"type": "text", "text": one} for one in texts]
        found = tree.start(History.of({"messages": later, "system": parts}))
        assert found == start if start else found.messages == 4
    later[2] = {"role": "user", "content": [result | {"content": "4"}]}
    assert tree.start(History.of({"messages": later, "system": "Be brief."})) is None


def test_the_items_of_an_answer_are_one_message():
    tree = TrajectoryTree()
    _recorded(tree, [1], [10], None, SHOWN, input="add 1 and 2")
    thought = {"type": "reasoning", "summary": [], "content": [{"text": "two numbers"}]}
    text = {"type": "message", "role": "assistant", "content": [{"text": ""}]}
    call = {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a":1,"b":2}'}
    output = {"type": "function_call_output", "call_id": "1", "output": "3"}
    for answer in ([thought, text, call], [call], [thought, call]):
        start = tree.start(History.of({"input": [USER, *answer, output]}))
        assert (start.token_ids, start.messages) == ([1, 10], len(answer) + 1)
    assert tree.start(History.of({"input": [USER, thought, output]})) is None
    assert tree.start(History.of({"input": [USER, call, call, output]})) == "edited"
    asked = [USER, call, output]
    _recorded(tree, [1, 10, 2], [11], None, {"content": "It is 3."}, input=asked)
    said = {"role": "assistant", "content": "It is 3."}
    assert tree.start(History.of({"input": [*asked, said, USER]})).messages == 4
    changed = [USER, call, output | {"output": "4"}, said, USER]
    assert tree.start(History.of({"input": changed})).messages == 2


def test_a_line_that_changes_in_every_call_and_is_in_no_prompt_changes_nothing():
    tree = TrajectoryTree()
    system = [
        {"role": "system", "content": f"x-anthropic-billing-header: {one}\nBe brief."}
        for one in "ab"
    ]
    _recorded(tree, [1], [10, 11], [system[0], USER], SHOWN)
    start = tree.start(History.of({"messages": [system[1], USER, _passed(), RESULT]}))
    assert start.messages == 3


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"tools": [CALL]}, "settings"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "settings"),
        ({"tool_choice": "none"}, "settings"),
        ({"tool_choice": "required", "temperature": 0.5, "max_tokens": 7}, None),
        ({"messages": [USER, _passed(reasoning="three"), RESULT]}, "edited"),
        ({"messages": [USER, _passed(tool_calls=_called(arguments="{}")), RESULT]}, "edited"),
    ],
)
def test_why_a_call_does_not_go_on_is_named(later, reason):
    tree = TrajectoryTree()
    _recorded(tree, [1], [10, 11], [USER], SHOWN, tool_choice="auto")
    start = tree.start(History.of({"messages": [USER, _passed(), RESULT], **later}))
    assert start == reason if reason else start.token_ids == [1, 10, 11]


def test_an_answer_of_which_calls_were_hidden_does_not_go_on():
    tree = TrajectoryTree()
    _recorded(tree, [1], [10, 11], [USER], None)
    assert tree.start(History.of({"messages": [USER, _passed(), RESULT]})) == "edited"
