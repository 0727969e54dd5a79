"""Metrics say which layer of the jail stopped an answer, by kernel facts where there are any."""

import pytest

from services.observability.metrics import RewardMetrics
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAYERS = {
    "while True: pass": "cpu",
    "print('x' * (1 << 22))": "output",
    "import socket; socket.socket()": "seccomp",
    "open('/usr/bin/env')": "landlock",
    "raise ValueError('PermissionError: [Errno 13]')": None,
    "print(21)": None,
}


@pytest.mark.parametrize("code", LAYERS)
async def test_the_layer_that_stops_an_answer_is_counted(
    scoring: Scoring, program_job, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(RewardMetrics.denials, "inc", lambda _, tags: counted.append(tags["layer"]))
    # So short that a busy machine gives it before the wall limit ends the answer, which is longer.
    cpu_s = 0.1 if LAYERS[code] == "cpu" else 10.0
    await scoring.score([program_job(code, cpu_s=cpu_s, output_kb=64)])
    assert counted == ([] if LAYERS[code] is None else [LAYERS[code]])
