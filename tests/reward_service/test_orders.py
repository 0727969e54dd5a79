"""Several tests of one answer in an order to a slot: verdicts, and the messages themselves."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.jailed.orders import Facts, Order, decode_reply, encode_reply
from services.reward_service.judging.budget import Budget
from services.reward_service.sandbox import sandbox
from services.reward_service.sandbox.execution import Execution, Outcome, read_outcomes
from services.reward_service.sandbox.slot import Slot

NewScoring = Callable[..., Any]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes of each order that a slot is given; none ends early because it takes long."""
    orders, begin = list[int](), Slot.begin

    def counted(self: Slot, execution: Execution) -> int:
        orders.append(1 + len(execution.more))
        return begin(self, execution)

    monkeypatch.setattr(Slot, "begin", counted)
    monkeypatch.setattr("services.reward_service.sandbox.slot._BATCH_S", 600.0)
    return orders


@pytest.mark.parametrize(("printed", "expected"), [("input()", [1, 2, 4, 8]), ("0", [1])])
async def test_a_right_answer_has_ever_more_tests_in_an_order_and_a_wrong_one_has_one(
    new_scoring: NewScoring, program_job: Any, begun: list[int], printed: str, expected: list[int]
) -> None:
    scoring = await new_scoring("B", slots=1)
    begun.clear()  # of the self-test
    try:
        tests = [(f"{number}\n", f"{number}\n") for number in range(1, 16)]
        (score,) = await scoring.score([program_job(f"print({printed})", tests)])
    finally:
        scoring.close()
    assert begun == expected
    assert score.run == (15 if score.reward else 1)


async def test_an_order_has_no_more_input_than_the_event_loop_copies_at_once(
    new_scoring: NewScoring, program_job: Any, begun: list[int]
) -> None:
    scoring = await new_scoring("B", slots=1)
    begun.clear()
    try:
        tests = [("x" * 600_000, "600000")] * 6
        (score,) = await scoring.score([program_job("print(len(input()))", tests)])
    finally:
        scoring.close()
    assert begun == [1, 2, 2, 1]
    assert score.verdict is Verdict.ACCEPTED


FAILS_LATE = """import sys
number = int(input())
if number == 5:
    {fault}
print(number if number != 9 else 0)
"""


@pytest.mark.parametrize("policy", ["all", "fraction", "grouped"])
@pytest.mark.parametrize("fault", ["pass", "sys.exit(3)", "while True: pass", "1 / 0"])
async def test_the_tests_of_an_order_are_judged_as_if_each_were_alone(
    new_scoring: NewScoring, monkeypatch: pytest.MonkeyPatch, policy: str, fault: str
) -> None:
    tests = [{"stdin": f"{n}", "expected": f"{n}", "group": str(n % 4)} for n in range(14)]
    grader = {"kind": "code", "policy": policy, "tests": tests, "limits": {"cpu_s": 0.2}}
    code = FAILS_LATE.format(fault=fault)
    for module in ("sandbox.execution", "graders.code_job"):  # nothing here idles, but for a core
        name = f"services.reward_service.{module}.idle_limit_s"
        monkeypatch.setattr(name, lambda limits: 60.0)
    found = []
    for at_once in (1, 16):
        monkeypatch.setattr("services.reward_service.judging.trial._MAX_AT_ONCE", at_once)
        scoring = await new_scoring("B", slots=1)
        try:
            job = ScoreJob(job_id="1", completion=code, grader=CodeGrader.model_validate(grader))
            (score,) = await scoring.score([job])
        finally:
            scoring.close()
        tried = sorted((one.test, one.verdict) for one in score.tests)
        found.append((score.verdict, score.reward, score.first_failure, tried))
    assert found[0] == found[1]


async def test_a_starved_test_in_the_middle_of_an_order_has_a_second_longer_chance(
    new_scoring: NewScoring, program_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_machine_is_contended", lambda: True)
    code = "import time\nnumber = int(input())\nif number == 2: time.sleep(2.5)\nprint(number)"
    tests = [(f"{number}\n", f"{number}\n") for number in range(6)]
    scoring = await new_scoring("B", slots=1)
    try:
        (score,) = await scoring.score([program_job(code, tests, cpu_s=0.1)])
    finally:
        scoring.close()
    assert score.verdict is Verdict.ACCEPTED, score


async def test_an_answer_whose_slot_is_lost_in_an_order_is_run_again(
    new_scoring: NewScoring, program_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring, end, lost = await new_scoring("B", slots=1), Slot.end, list[int]()

    async def end_and_lose(self: Slot, execution: Execution, outputs: int) -> list[Outcome]:
        if execution.more and not lost:
            lost.append(1)
            signal.pidfd_send_signal(self._server, signal.SIGKILL)
        return await end(self, execution, outputs)

    monkeypatch.setattr(Slot, "end", end_and_lose)
    try:
        tests = [(f"{number}\n", f"{number}\n") for number in range(6)]
        code = "import time\ntime.sleep(0.05)\nprint(input())"
        (score,) = await scoring.score([program_job(code, tests)])
    finally:
        scoring.close()
    assert lost
    assert (score.verdict, score.passed) == (Verdict.ACCEPTED, 6)


async def test_a_test_that_can_change_nothing_more_is_charged_as_it_ran_all_the_same(
    new_scoring: NewScoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or an answer could sleep in each of them for nothing."""
    ran, charged, end, charge = list[Outcome](), list[Outcome](), Slot.end, Budget.charge

    async def ended(self: Slot, execution: Execution, outputs: int) -> list[Outcome]:
        outcomes = await end(self, execution, outputs)
        ran.extend(outcomes)
        return outcomes

    def charged_too(self: Budget, outcome: Outcome, tests: Outcome | None = None) -> None:
        charged.append(outcome)
        charge(self, outcome, tests)

    scoring = await new_scoring("B", slots=1)
    monkeypatch.setattr(Slot, "end", ended)
    monkeypatch.setattr(Budget, "charge", charged_too)
    try:
        tests = [{"stdin": "", "expected": "1", "group": str(n // 4)} for n in range(16)]
        grader = {"kind": "code", "policy": "grouped", "tests": tests}
        job = ScoreJob(job_id="1", completion="print(2)", grader=CodeGrader.model_validate(grader))
        (score,) = await scoring.score([job])
    finally:
        scoring.close()
    assert score.run == 4
    assert len(ran) > 4
    assert charged == ran


FACTS = Facts(
    cpu_s=0.1,
    wall_s=0.2,
    peak_kb=3,
    stdout=4,
    stderr=5,
    report=6,
    exit_code=-9,
    killed=1,
    confined=1,
)


def test_a_reply_that_no_slot_would_send_is_an_error(tmp_path: Path) -> None:
    outputs = os.open(tmp_path / "outputs", os.O_RDWR | os.O_CREAT)
    try:
        os.write(outputs, b"x" * 15)
        (outcome,) = read_outcomes(encode_reply(0, [FACTS]), outputs)
        assert (outcome.stdout, outcome.killed) == (b"xxxx", "cpu")
        for wrong in ({"killed": 4}, {"stdout": 1 << 60}, {"stdout": 0}):
            with pytest.raises(ValueError, match="slot"):
                read_outcomes(encode_reply(0, [replace(FACTS, **wrong)]), outputs)
    finally:
        os.close(outputs)


def test_orders_and_replies_come_back_as_they_were() -> None:
    order = Order(
        cpu_s=1.5,
        wall_s=2.5,
        longest_s=float("inf"),
        begin_s=0.1,
        peer_ended_s=0.5,
        address_space=1 << 40,
        data=0,
        stack=1 << 26,
        output=1 << 10,
        kind=1,
        lent=2,
        stdin=(0, 1 << 33),
        arguments=["program", ""],
        environment=["A=b c"],
    )
    assert Order.decode(order.encode()) == order
    facts = [FACTS]
    assert decode_reply(encode_reply(0, facts)) == facts
    with pytest.raises(OSError, match="Too many open files"):
        decode_reply(encode_reply(24, facts))
    for broken in (b"", b"x", encode_reply(0, facts)[:-1], encode_reply(0, facts)[:8]):
        with pytest.raises(ValueError, match="reply"):
            decode_reply(broken)
