"""The trainer's self-test of a train step agrees with float64, and finds a step that does not."""

import json

import pytest

from millrace_tools.accept.stages.train_step import gaps_of
from services.trainer.self_test import train_step


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, float | None]:
    train_step.main(["--device", "cpu"])
    found: dict[str, float | None] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_step_of_a_rank_is_that_of_a_plain_loop_in_float64(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = figures(capsys)
    gaps = gaps_of(found)
    assert gaps["loss"] < 1e-6
    assert gaps["grad_norm"] < 1e-5
    assert gaps["logprobs"] < gaps["logprobs after"] < 1e-5
    assert found["moved"] > 0.01, "an update that moves nothing proves nothing"
    assert found["tokens_per_s"] > 0
    assert found["mfu"] is None


def test_a_step_that_is_one_per_cent_off_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = train_step.Reference.step

    def scaled(self, groups):
        loss, norm = right(self, groups)
        return 1.01 * loss, 1.01 * norm

    monkeypatch.setattr(train_step.Reference, "step", scaled)
    gaps = gaps_of(figures(capsys))
    assert gaps["loss"] > 1e-5
    assert gaps["grad_norm"] > 1e-3
