"""The page of clients says what the last run of them found, and names every program."""

import json

from tests.clients.matrix import CHECKS, CLIENTS, PAGE, PROGRAMS, RECORD, shown


def test_the_page_shows_the_record() -> None:
    page = PAGE.read_text()
    assert page == shown(page, json.loads(RECORD.read_text()))


def test_every_client_was_run_and_no_check_failed() -> None:
    recorded = json.loads(RECORD.read_text())
    assert list(recorded) == list(CLIENTS)
    for name, row in recorded.items():
        assert set(row["checks"]) <= set(CHECKS), name
        assert not any(row["checks"].values()), name


def test_every_program_is_a_clients() -> None:
    programs = {one.name for one in PROGRAMS.iterdir() if one.is_file()}
    known = {client.program for client in CLIENTS.values()}
    assert programs - known == {"checks.py", "checks.mjs"}


def test_the_page_explains_each_check() -> None:
    assert all(f"| {check} | " in PAGE.read_text() for check in CHECKS)
