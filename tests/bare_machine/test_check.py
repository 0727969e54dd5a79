"""The parts of the bare-machine check that need neither root nor hours."""

import json
import os
from pathlib import Path

import pytest

from tests.bare_machine import check


def test_the_page_shows_the_record() -> None:
    text = check.PAGE.read_text(encoding="utf-8")
    (place,) = check.TABLE.finditer(text)
    if not check.RECORD.exists():
        assert "Not run yet." in place[0]
    else:
        record = json.loads(check.RECORD.read_text(encoding="utf-8"))
        assert check.page(text, record) == text


def test_a_command_that_was_not_tried_is_said_to_be_so() -> None:
    of = {"commit": "abc", "date": "2026-01-02", "user": "root", "busy": 2}
    run = {**of, "results": {"demo": ("failed (2)", 1004)}}
    shown = check.table({"cores": 2, "machine": "x86_64", "runs": [run]})
    assert "| root | 2 | `abc`, 2026-01-02 | failed (2), 1,004 s | not tried |" in shown


def test_a_run_that_is_repeated_replaces_the_one_of_its_kind() -> None:
    def made(*runs: tuple[str, int, str]) -> dict:
        names = ("user", "busy", "commit")
        rows = [dict(zip(names, run, strict=True)) for run in runs]
        return {"cores": 2, "machine": "x86_64", "runs": rows}

    first = made(("root", 0, "abc"), ("root", 2, "abc"), ("root", 2, "abc"))
    again = made(("root", 2, "def"))
    assert check.joined(first, again) == made(("root", 0, "abc"), ("root", 2, "def"))
    other = {**again, "cores": 4}
    assert check.joined(first, other) == other
    assert check.joined({}, first) == first


def test_what_pytest_says_at_the_end_of_each_part_is_added_up() -> None:
    said = "1 failed, 20 passed, 3 skipped in 1.00s\nnoise 5 passed\n==== 400 passed in 2.5s ====\n"
    assert check.counts(said) == ", 1 failed, 420 passed, 3 skipped"
    assert check.counts("") == ""


def test_what_the_package_index_needs_goes_along_and_caches_and_the_rest_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels, certificate = tmp_path / "wheels", tmp_path / "wheels" / "cert.pem"
    wheels.mkdir()
    certificate.touch()
    for name in list(os.environ):
        if check._OF_INDEX.fullmatch(name):
            monkeypatch.delenv(name)
    given = {
        "UV_FIND_LINKS": wheels.as_uri(),
        "SSL_CERT_FILE": str(certificate),
        "https_proxy": "http://127.0.0.1:1",
        "PIP_EXTRA_INDEX_URL": "https://one.invalid/simple\nfile:///nowhere/simple",
    }
    for name, value in {**given, "UV_CACHE_DIR": str(tmp_path), "SECRET": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(check.sys, "executable", "false")
    settings = check.index_settings()
    assert settings == {name: value.replace("\n", " ") for name, value in given.items()}
    assert check.folders_and_files(settings) == [wheels], "the certificate lies within"


def test_without_root_it_says_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert check.complaint().endswith("-> sudo make bare-machine")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert check.complaint().endswith("-> apt-get install debootstrap util-linux git")
    assert "\n" not in check.complaint()
