"""Fixtures of the orchestrator's tests."""

import pytest

from services.orchestrator.run_directory import RunDirectory


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the learning curve out: drawing takes longer than a whole run here."""
    monkeypatch.setattr(RunDirectory, "draw_learning_curve", lambda self: None)
