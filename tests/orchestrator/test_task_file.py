"""A task file that cannot be used is refused with its line, the field and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.tasks.task_table import load_tasks
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig

TEST = {"args": [1], "expected": 1}
GRADER = {"kind": "python_function", "entry_point": "f", "tests": [TEST]}
USER = {"role": "user", "content": "double it"}
TASK = {"task_id": "a", "messages": [USER], "split": "train", "grader": GRADER}


def without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def refusal(folder: Path, *lines: object, quote: bool = True) -> tuple[str, object, str]:
    """Field without the path, value and fix."""
    path = folder / "tasks.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts))
    with pytest.raises(InvalidInput) as error:
        load_tasks(path, quote=quote)
    return error.value.field.removeprefix(f"{path}, "), error.value.value, error.value.fix


@pytest.mark.parametrize(
    ("row", "field", "value", "fix"),
    [
        (without(TASK, "split"), "line 2", "split", "missing"),
        (TASK | {"grader": without(GRADER, "kind")}, "line 2: grader", "kind", "missing"),
        (TASK | {"spilt": "train"}, "line 2", "spilt", "No such key"),
        (without(TASK, "split") | {"spilt": "train"}, "line 2", "spilt", "No such key"),
        (TASK | {"split": "test"}, "line 2: split", "test", "'train' or 'heldout'"),
        (TASK | {"grader": GRADER | {"kind": "c"}}, "line 2: grader.kind", "c", "python_stdio"),
        (TASK | {"messages": [{"rol": "user"}]}, "line 2: messages.0", "rol", "No such key"),
        (TASK | {"messages": [{"role": "user"}]}, "line 2: messages.0", "content", "missing"),
        (
            TASK | {"messages": [USER, USER | {"role": "usr"}]},
            "line 2: messages.1.role",
            "usr",
            "'system', 'user', 'assistant' or 'tool'",
        ),
        (
            TASK | {"messages": [USER | {"content": 7}]},
            "line 2: messages.0.content",
            7,
            "valid string",
        ),
        (TASK | {"messages": []}, "line 2: messages", [], "at least 1 item"),
        (TASK, "line 2: task_id", "a", "used twice"),
        ('{"task_id": "b",}', "line 2", '{"task_id": "b",}', "not JSON"),
        ("[]", "line 2", [], "valid dictionary"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_with_a_task_is_said_with_line_field_and_value(
    tmp_path: Path, row: object, field: str, value: object, fix: str
) -> None:
    got = refusal(tmp_path, TASK, row)
    assert got[:2] == (field, value)
    assert fix in got[2]


def test_a_file_read_for_a_client_is_never_quoted_but_missing_keys_are_named(
    tmp_path: Path,
) -> None:
    secret = {"role": "user", "content": "x", "password": 1}
    for row in (TASK | {"messages": [secret]}, TASK | {"split": "password"}, "password"):
        assert "password" not in repr(refusal(tmp_path, row, quote=False))
    assert refusal(tmp_path, without(TASK, "grader"), quote=False)[1] == "grader"


def test_messages_are_sent_as_they_stand_in_the_file(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "be brief\u2028and kind"},
        {"role": "user", "content": "hi", "name": "ann"},
    ]
    rows = [TASK | {"messages": messages}, TASK | {"task_id": "b", "split": "heldout"}]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert load_tasks(path)[0].chat == messages


def test_a_file_that_is_not_utf_8_names_the_line_and_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    second = json.dumps(TASK | {"task_id": "é"}, ensure_ascii=False)
    file.write_bytes(json.dumps(TASK).encode() + b"\n\n" + second.encode("latin-1") + b"\n")
    at = second.index("é") + 1
    with pytest.raises(InvalidInput) as refused:
        load_tasks(file, quote=False)
    assert refused.value.fix == f"It is not UTF-8 at line 3, byte {at}: save the file as UTF-8."


def test_a_run_file_that_is_not_utf_8_names_the_line_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes("name: a\r\nmodel: é\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match="not UTF-8 at line 2, byte 8"):
        RunConfig.from_yaml(file)
