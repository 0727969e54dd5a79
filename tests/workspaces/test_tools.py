"""What an agent reads of a workspace's tools, and what its mistakes come to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import CallResult, ExecCall, FileEntry, Picture, PythonCall
from services.workspaces.tool_text import call_text, cut_middle, file_text, folder_text
from services.workspaces.tools import TOOLS, ToolLimits, description, input_schema, use_tool

LIMITS = ToolLimits()


class Desk:
    """A workspace whose calls have one result."""

    def __init__(self, result: CallResult | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.calls: list[Any] = []
        self._result = result or CallResult(status="ok", stdout="hello\n", stdout_bytes=6)

    async def python(self, call: PythonCall) -> CallResult:
        self.calls.append(call)
        return self._result

    async def exec(self, call: ExecCall) -> CallResult:
        self.calls.append(call)
        return self._result

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        if path not in self.files:
            raise InvalidInput("path", path, "There is no such file.")
        return self.files[path][:max_bytes]

    async def write(self, path: str, content: bytes) -> None:
        self.files[path] = content

    async def list(self, path: str) -> list[FileEntry]:
        return [
            FileEntry(path=path, kind="file", bytes=len(content), mode=0o644)
            for path, content in self.files.items()
        ]


def result(**fields: Any) -> CallResult:
    return CallResult(**{"status": "ok", **fields})


async def test_each_tool_does_what_its_name_says() -> None:
    desk = Desk()
    use = lambda name, **given: use_tool(desk, name, json.dumps(given), LIMITS)  # noqa: E731
    assert (await use("python", code="1")).text == "hello"
    assert (await use("bash", command="ls")).text == "hello"
    assert desk.calls[0].code == "1"
    assert desk.calls[1].argv == ["bash", "-c", "ls"]
    assert (await use("list")).text == "(the folder is empty)"
    assert (await use("write", path="a/b.txt", content="é\ntwo\nthree\n")).text == (
        "wrote 13 bytes to a/b.txt"
    )
    assert (await use("read", path="a/b.txt")).text == "é\ntwo\nthree\n"
    assert (await use("read", path="a/b.txt", first_line=2, lines=1)).text == "two\n"
    assert (await use("read", path="a/b.txt", first_line=9)).text == "(there is no line 9)"
    assert (await use("list", path=".")).text.split() == ["13", "a/b.txt"]


MISTAKES: list[tuple[str, Any, str]] = [
    ("pyhton", {"code": "1"}, "There is no such tool; there are: python, bash, read, write, list."),
    ("", "", "There is no such tool"),
    ("python", "{", "They are a JSON object"),
    ("python", "[" * 100_000, "They are a JSON object"),
    ("python", "1" * 10_000, "error: "),
    ("python", '"code"', "error: "),
    ("python", "null", "error: "),
    ("python", "", "This key is required"),
    ("python", {}, "This key is required"),
    ("python", None, "This key is required"),
    ("python", {"code": 3}, "valid string"),
    ("python", {"code": "\ud800"}, "UTF-8"),
    ("python", {"cod": "1"}, "the nearest is code"),
    ("bash", {"command": ""}, "at least 1 character"),
    ("bash", {"command": "a\0b"}, "NUL"),
    ("read", {"path": "/etc/passwd"}, "stays in the workspace"),
    ("read", {"path": "../x"}, "stays in the workspace"),
    ("read", {"path": "a\0"}, "NUL"),
    ("read", {"path": "a", "lines": 0}, "greater than or equal to 1"),
    ("read", {"path": "a"}, "There is no such file"),
    ("write", {"path": "a" * 300, "content": ""}, "255 bytes"),
]


@pytest.mark.parametrize(("name", "arguments", "part"), MISTAKES)
async def test_a_mistake_of_the_agent_is_an_answer(name: str, arguments: Any, part: str) -> None:
    answer = await use_tool(Desk(), name, arguments, LIMITS)
    assert not answer.ok
    assert answer.text.startswith("error: ")
    assert part in answer.text
    assert len(answer.text) < 9000


async def test_a_tool_that_is_not_offered_does_not_exist() -> None:
    answer = await use_tool(Desk(), "bash", {"command": "ls"}, LIMITS, offered=("python",))
    assert (
        answer.text
        == "error: tool: 'bash' is not usable. There is no such tool; there are: python."
    )


ENDS = [
    (result(), "(no output)"),
    (result(result="7"), "7"),
    (result(stdout="a\n", stderr="b\n", result="7"), "a\nb\n7"),
    (result(status="failed", exit_code=3), "[exit status 3]"),
    (result(status="failed", exit_code=-11, stdout="x"), "x\n[ended by signal 11]"),
    (result(status="failed", traceback="E: x"), "E: x"),
    (
        result(status="time_limit", exit_code=-9, interpreter_restarted=True),
        "[time_limit: it was stopped because it took too long (30 s)]\n"
        "[the interpreter was restarted: variables of earlier calls are gone]",
    ),
    (result(stdout="ab", stdout_bytes=10), "ab\n[8 more bytes were printed and are not shown]"),
    (result(pictures=[Picture(mime="image/png", base64="")]), "[a picture: image/png]"),
]


@pytest.mark.parametrize(("ended", "text"), ENDS)
def test_a_result_says_what_was_printed_and_how_it_ended(ended: CallResult, text: str) -> None:
    assert call_text(ended, wall_s=30, max_chars=100) == text


@given(st.text(max_size=300), st.integers(min_value=1, max_value=100))
def test_a_text_that_is_cut_keeps_both_ends_and_says_how_much_is_gone(text: str, most: int) -> None:
    shown = cut_middle(text, most)
    if len(text) <= most:
        assert shown == text
    else:
        head, tail = most // 2, most - most // 2
        assert shown == (
            f"{text[:head]}\n[{len(text) - most} characters are not shown]\n{text[-tail:]}"
        )


def test_bytes_that_are_no_text_are_still_shown() -> None:
    assert file_text(b"\xff\x00", first_line=1, lines=None) == "\ufffd\x00"
    assert file_text(b"", first_line=1, lines=None) == "(the file is empty)"
    folder = FileEntry(path="a", kind="folder", bytes=0, mode=0o755)
    assert folder_text([folder]).endswith("a/")


def test_schemas_are_what_openai_and_mcp_take() -> None:
    for name in TOOLS:
        schema = input_schema(name)
        assert set(schema) == {"type", "properties", "required", "additionalProperties"}
        assert set(schema["required"]) <= set(schema["properties"])
        assert "title" not in json.dumps(schema)
        assert "$ref" not in json.dumps(schema)
        assert description(name).endswith(".")
        assert "\n" not in description(name)
