"""How the Serve application reaches its peers."""

import pytest

from services.orchestrator import app
from services.orchestrator.config import OrchestratorConfig


def test_deadlines_of_calls_are_those_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: dict[str, float] = {}
    monkeypatch.setattr(app, "reward_peer", lambda *, timeout_s: waited_s.update(reward=timeout_s))
    # Asking a Serve that does not run would start a Ray in this process.
    monkeypatch.setattr(app, "http_host", lambda: "127.0.0.1")
    config = OrchestratorConfig(score_timeout_s=77)
    app.Orchestrator(config)._runs._peers()
    assert waited_s == {"reward": 77}
