"""How the Serve application reaches its peers."""

import pytest

from services.orchestrator import app
from services.orchestrator.config import OrchestratorConfig
from services.trainer.config import TrainerConfig


def test_the_trainer_gives_up_before_the_orchestrator_stops_waiting_for_it() -> None:
    trainer = TrainerConfig(model="x")
    waited_s = OrchestratorConfig().trainer_call_timeout_s
    assert waited_s > trainer.call_timeout_s + trainer.bus_timeout_s


def test_deadlines_of_calls_are_those_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: dict[str, float] = {}
    for name in ("trainer_peer", "reward_peer"):
        monkeypatch.setattr(
            app, name, lambda *, timeout_s, name=name: waited_s.update({name: timeout_s})
        )
    # Asking a Serve that does not run would start a Ray in this process.
    monkeypatch.setattr(app, "http_host", lambda: "127.0.0.1")
    config = OrchestratorConfig(trainer_call_timeout_s=2100, score_timeout_s=77)
    app.Orchestrator(config)._runs._peers()
    assert waited_s == {"trainer_peer": 2100, "reward_peer": 77}
