"""Deltas of a chat become blocks that begin, go on and end, one after the other."""

from hypothesis import given
from hypothesis import strategies as st

from services.router.doors.blocks import Blocks


def _call(index, name=None, arguments=None):
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": name and f"call-{index}", "function": function}]}


def _taken(*deltas):
    blocks = Blocks()
    steps = [step for delta in deltas for step in blocks.take(delta, [])]
    return blocks, steps + list(blocks.end())


def _told(steps):
    return [(step.what, step.block.kind, step.block.index, step.text) for step in steps]


def test_thoughts_text_and_calls_follow_each_other():
    blocks, steps = _taken(
        {"reasoning": "so"},
        {"content": "a"},
        {"content": "b"},
        _call(0, "add", ""),
        _call(0, None, "{}"),
    )
    assert _told(steps) == [
        ("begin", "reasoning", 0, ""),
        ("more", "reasoning", 0, "so"),
        ("end", "reasoning", 0, ""),
        ("begin", "text", 1, ""),
        ("more", "text", 1, "a"),
        ("more", "text", 1, "b"),
        ("end", "text", 1, ""),
        ("begin", "tool", 2, ""),
        ("more", "tool", 2, "{}"),
        ("end", "tool", 2, ""),
    ]
    assert [(block.name, block.call) for block in blocks.all] == [("", "")] * 2 + [
        ("add", "call-0")
    ]


def test_text_inside_a_call_waits_for_its_end():
    _, steps = _taken(
        _call(0, "add", '{"a"'),
        {"content": " and "},
        _call(0, None, ":1}"),
        _call(1, "halve", "{}"),
    )
    ended = [step.block for step in steps if step.what == "end"]
    assert [(block.kind, block.text) for block in ended] == [
        ("tool", '{"a":1}'),
        ("text", " and "),
        ("tool", "{}"),
    ]


def test_a_whole_message_is_divided_as_its_stream_is():
    calls = [{"id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}},
             {"id": "y", "function": {"name": "add", "arguments": '{"a": 2}'}}]  # fmt: skip
    blocks = Blocks.of({"reasoning": "r", "content": "c", "tool_calls": calls}, [])
    assert [(block.kind, block.call) for block in blocks] == [
        ("reasoning", ""),
        ("text", ""),
        ("tool", "x"),
        ("tool", "y"),
    ]
    assert blocks[2].arguments == {"a": 1}


def test_arguments_that_are_no_object_are_shown_as_they_are():
    (cut,) = Blocks.of({"tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}]}, [])
    assert cut.arguments == {"unparsed": '{"a": '}
    (empty,) = Blocks.of({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, [])
    assert empty.arguments == {}


_DELTAS = st.one_of(
    st.builds(lambda text: {"reasoning": text}, st.text(max_size=3)),
    st.builds(lambda text: {"content": text}, st.text(max_size=3)),
    st.builds(_call, st.integers(0, 2), st.sampled_from(["f", None]), st.text(max_size=3)),
)


@given(st.lists(_DELTAS, max_size=12))
def test_steps_are_nested_as_no_client_can_misread(deltas):
    _, steps = _taken(*deltas)
    opened = None
    for step in steps:
        if step.what == "begin":
            assert opened is None
            opened = step.block
        assert step.block is opened
        if step.what == "end":
            opened = None
    assert opened is None
    said = "".join(delta.get("content") or "" for delta in deltas)
    assert "".join(step.text for step in steps if step.block.kind == "text") == said
