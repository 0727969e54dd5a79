"""The page of environments says what the last run of the adapters' tests found."""

import json

from tests.adapters.versions import FILES, HERE, PAGE, RECORD, VERSIONS, names, shown


def test_the_page_shows_the_record() -> None:
    page = PAGE.read_text()
    assert page == shown(page, json.loads(RECORD.read_text()))


def test_every_version_was_tried_and_no_test_failed() -> None:
    recorded = json.loads(RECORD.read_text())
    assert list(recorded) == names()
    assert all(row["passed"] and not row["failed"] for row in recorded.values())


def test_every_package_has_tests_of_its_adapter() -> None:
    assert FILES.keys() <= VERSIONS.keys() | set(names())
    assert VERSIONS.keys() <= FILES.keys()
    assert all((HERE / f"test_{one}.py").exists() for several in FILES.values() for one in several)
