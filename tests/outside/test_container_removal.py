"""A container runtime that does not manage at once."""

from pathlib import Path

import pytest

from millrace_tools.agents.containers import Containers

RUNTIME = """#!/bin/sh
[ "$1" = rm ] || exit 0
echo "$3" >> {folder}/asked
[ $(grep -c "^$3$" {folder}/asked) -gt {failures} ] && exit 0
echo "cannot remove $3" >&2
exit 1
"""


@pytest.mark.parametrize(("failures", "asked"), [(0, 1), (1, 2), (9, 3)])
def test_a_removal_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, asked: int
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(RUNTIME.format(folder=tmp_path, failures=failures))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = Containers("image", []).remove("mine")
    assert (tmp_path / "asked").read_text().split().count("mine") == asked
    assert said == ("cannot remove mine\n" if failures == 9 else "")
