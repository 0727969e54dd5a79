"""Looks at the processes of a workspace, which a service takes ten times a second of each call."""

import os
import subprocess
import sys

import pytest

from services.reward_service.workspaces.jails import processes


def test_a_look_at_processes_leaves_no_name_with_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pathlib` interns each part of a path, and process numbers are ever new ones."""
    names: list[str] = []
    intern = sys.intern
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        monkeypatch.setattr(sys, "intern", lambda name: names.append(name) or intern(name))
        try:
            used = processes.usage(os.getpid())
            exact = processes.proportional_memory(os.getpid())
        finally:
            monkeypatch.undo()
            sleeper.kill()
    assert used.processes >= 1
    assert used.memory > 0
    assert exact is None or exact > 0
    assert names == []
