"""The page of the audit says what the last audits of eight environments found."""

import json

from tests.audit.eight import EIGHT, PAGE, RECORD, shown


def test_the_page_shows_the_record() -> None:
    page = PAGE.read_text()
    assert page == shown(page, json.loads(RECORD.read_text()))


def test_every_planted_defect_was_found_and_no_good_environment_failed() -> None:
    recorded = json.loads(RECORD.read_text())
    assert list(recorded) == list(EIGHT)
    assert [row["defect"] for row in recorded.values()] == [one.defect for one in EIGHT.values()]
    assert sum(bool(one.defect) for one in EIGHT.values()) == 4
    for name, row in recorded.items():
        check = EIGHT[name].check
        assert check in row["failed"] if check else not row["failed"], name
