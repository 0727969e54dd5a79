"""The Dockerfiles have no fault that hadolint knows, and what the services need is in them."""

import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "deploy" / "docker"
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_hadolint_finds_no_fault(name: str) -> None:
    lint = subprocess.run(
        [HADOLINT, "--no-color", DOCKER / f"{name}.Dockerfile"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (lint.returncode, lint.stdout) == (0, ""), lint.stdout + lint.stderr


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_the_image_has_what_a_sandbox_of_tier_a_needs(name: str) -> None:
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    assert "g++" in text
    assert "\nUSER 1000\n" in text
    assert f"'.[{name},data]'" in text


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_the_image_has_all_that_the_wheel_has(name: str) -> None:
    root = DOCKER.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    copied = (DOCKER / f"{name}.Dockerfile").read_text()
    sent = (root / ".dockerignore").read_text().splitlines()
    for folder in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        assert f"COPY --chown=millrace {folder} {folder}\n" in copied
        assert f"!{folder}" in sent
