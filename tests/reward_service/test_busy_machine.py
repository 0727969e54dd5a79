"""An answer has its limits to itself: what its jail costs on a busy machine is not counted."""

import pytest

from services.protocol.reward.reward_service import Verdict
from services.reward_service.isolation.jail import BOOT

SLOW = """
import time
confine = sys.modules['services.reward_service.jailed.confine']
seal = confine.seal
def slowly(*arguments):
    while time.process_time() < 0.4:
        pass
    time.sleep(1.2)
    seal(*arguments)
confine.seal = slowly
module.main(control)
"""


@pytest.fixture
def jails_that_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BOOT.replace("module.main(control)", SLOW)
    assert boot != BOOT
    monkeypatch.setattr("services.reward_service.isolation.jail.BOOT", boot)


@pytest.mark.usefixtures("jails_that_are_slow")
async def test_an_answer_is_judged_though_its_jail_took_longer_than_its_limits(
    new_scoring, function_job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reward_service.judging.program.idle_limit_s", lambda _: 1.0)
    scoring = await new_scoring("B", slots=1)
    try:
        good, loop = await scoring.score(
            [
                function_job("def f(a, b):\n    return a + b", cpu_s=0.3),
                function_job("def f(a, b):\n    while True: pass", cpu_s=0.3),
            ]
        )
    finally:
        scoring.close()
    assert (good.verdict, loop.verdict) == (Verdict.ACCEPTED, Verdict.TIME_LIMIT)
