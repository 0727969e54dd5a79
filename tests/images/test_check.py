"""The parts of the images' check that need neither root nor an hour."""

import json
import os

import pytest

from tests.images import check


def test_the_page_shows_the_record() -> None:
    text = check.PAGE.read_text(encoding="utf-8")
    (place,) = check.TABLE.finditer(text)
    if not check.RECORD.exists():
        assert "Not run yet." in place[0]
    else:
        assert check.page(text, json.loads(check.RECORD.read_text(encoding="utf-8"))) == text


def test_the_base_image_has_its_full_name() -> None:
    assert check.base_of("cpu") == "docker.io/library/python:3.11-slim-bookworm"
    assert check.base_of("cuda").startswith("docker.io/nvidia/cuda:")


def test_without_root_it_says_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert check.complaint().endswith("-> sudo make images")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert check.complaint().endswith("-> apt-get install debootstrap buildah podman crun")
