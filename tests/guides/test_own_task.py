"""The way to a curve on a task of one's own stays short, and its record says so."""

import json

from benchmarks.own_task import RECORD, table
from tests.guides.blocks import ROOT
from tests.operations.own_task import (
    MOST_COMMANDS,
    MOST_FILES,
    MOST_S,
    MOST_USER_S,
    PAGE,
    own_task_steps,
)


def test_it_takes_at_most_four_commands_and_one_edited_file() -> None:
    steps = own_task_steps()
    assert 0 < sum(one.commands for one in steps) <= MOST_COMMANDS
    assert 0 < sum(one.files for one in steps) <= MOST_FILES


def test_reading_and_typing_take_at_most_two_minutes() -> None:
    assert sum(one.user_s for one in own_task_steps()) <= MOST_USER_S


def test_it_was_done_in_five_minutes_as_the_page_says() -> None:
    record = json.loads(RECORD.read_text())
    rows = record["steps"]
    assert [row["name"] for row in rows] == [one.name for one in own_task_steps()]
    assert sum(row["user_s"] for row in rows) <= MOST_USER_S
    assert sum(row["user_s"] + row["machine_s"] for row in rows) <= MOST_S
    assert table(record) in (ROOT / PAGE).read_text(encoding="utf-8")
