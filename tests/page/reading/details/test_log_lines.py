import json
from pathlib import Path
from typing import Any

import pytest

from services.json_lines import JsonLines
from services.page.reading.details.log_lines import LogLines, LogQuery


def line(number: int, event: str = "step", level: str = "info", **fields: Any) -> str:
    known = {"time": f"2026-01-01T00:00:{number:02}.000Z", "level": level, "event": event}
    return json.dumps(known | {"step": number} | fields) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    older = "".join(line(number) for number in range(3))
    (tmp_path / "log.jsonl.1").write_text(older + line(3, "ledger_behind", "warning", error="full"))
    newer = line(4, detail='Weights of "A" arrived') + line(
        5, "ledger_behind", "warning", error="b"
    )
    (tmp_path / "log.jsonl").write_text(newer + line(6, "broke", "error", error="naïve") + '{"ti')
    return tmp_path / "log.jsonl"


@pytest.fixture
def log(path: Path) -> LogLines:
    return LogLines(JsonLines(path.with_name("log.jsonl.1")), JsonLines(path))


def steps(found: dict[str, Any]) -> list[int]:
    return [one["step"] for one in found["lines"]]


def test_lines_of_both_files_come_newest_first_a_page_at_a_time(log: LogLines) -> None:
    assert steps(log.find(LogQuery())) == [6, 5, 4, 3, 2, 1, 0]
    page = log.find(LogQuery(offset=2, limit=2))
    assert (page["total"], steps(page)) == (7, [4, 3])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"text": "weights ARRIVED"}, [4]),
        ({"text": '"a"'}, [4]),
        ({"text": "naïve"}, [6]),
        ({"level": "warning"}, [6, 5, 3]),
        ({"event": "ledger_behind", "text": "full"}, [3]),
        ({"event": "never"}, []),
    ],
)
def test_words_a_level_and_an_event_choose_lines(
    log: LogLines, asked: dict[str, Any], expected: list[int]
) -> None:
    assert steps(log.find(LogQuery(**asked))) == expected


def test_warnings_are_summed_up_by_event_with_the_newest_of_each(log: LogLines) -> None:
    broke, behind = log.warnings()
    assert (broke["event"], broke["count"]) == ("broke", 1)
    assert (behind["event"], behind["count"], behind["line"]["error"]) == ("ledger_behind", 2, "b")


def test_a_log_that_turned_to_another_file_is_read_anew(log: LogLines, path: Path) -> None:
    assert log.look() == 7
    path.replace(path.with_name("log.jsonl.1"))
    path.write_text(line(7))
    assert steps(log.find(LogQuery())) == [7, 6, 5, 4]


def test_a_search_goes_through_more_lines_than_are_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    words = ("even", "odd")
    path.write_text("".join(line(n % 60, detail=words[n % 2], n=n) for n in range(4500)))
    log = LogLines(JsonLines(tmp_path / "log.jsonl.1"), JsonLines(path))
    found = log.find(LogQuery(text="odd", limit=2))
    assert (found["total"], [one["n"] for one in found["lines"]]) == (2250, [4499, 4497])
