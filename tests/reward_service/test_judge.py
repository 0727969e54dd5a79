import signal

import pytest

from services.protocol.reward_service import Limits, Verdict
from services.reward_service.execution import Outcome
from services.reward_service.judge import judge_calls, judge_program

LIMITS = Limits(cpu_s=1.0, memory_mb=64, output_kb=1)


def outcome(**changes: object) -> Outcome:
    facts: dict[str, object] = {
        "exit_code": 0,
        "killed": None,
        "cpu_s": 0.01,
        "wall_s": 0.01,
        "stdout": b"",
        "stderr": b"",
        "report": b"",
    }
    return Outcome(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "verdict", "passed"),
    [
        ({"report": b"=i1\n=i2\n"}, Verdict.ACCEPTED, 2),
        ({"report": b"=i1\n=i3\n"}, Verdict.WRONG_ANSWER, 1),
        ({"report": b"=True\n=i2\n"}, Verdict.WRONG_ANSWER, 1),
        ({"report": b"=i1\n?of type set\n"}, Verdict.WRONG_ANSWER, 1),
        ({"report": b"=i1\n"}, Verdict.RUNTIME_ERROR, 1),
        ({"report": b""}, Verdict.RUNTIME_ERROR, 0),
        ({"report": b"=i1\n=i2\n=i3\n"}, Verdict.RUNTIME_ERROR, 2),
        ({"report": b"=i1\n=i2\n", "exit_code": 1}, Verdict.RUNTIME_ERROR, 2),
        ({"report": b"=i1\n!ValueError: x\n", "exit_code": 1}, Verdict.RUNTIME_ERROR, 1),
        ({"report": b"=i1\nMwhile running\n", "exit_code": 1}, Verdict.MEMORY_LIMIT, 1),
        ({"report": b"=i1\n", "killed": "cpu", "exit_code": -9}, Verdict.TIME_LIMIT, 1),
        ({"report": b"=i9\n", "killed": "cpu", "exit_code": -9}, Verdict.WRONG_ANSWER, 0),
        ({"report": b"=i1\n=i2\n", "cpu_s": 1.5}, Verdict.TIME_LIMIT, 2),
        ({"report": b"CSyntaxError: x\n", "exit_code": 1}, Verdict.COMPILE_ERROR, 0),
        ({"report": b"=i1\n=i2"}, Verdict.RUNTIME_ERROR, 1),
        ({"report": b"=i1\n=" + b"x" * 1019, "exit_code": -25}, Verdict.OUTPUT_LIMIT, 1),
        ({"report": b"\xff\n=i2\n"}, Verdict.RUNTIME_ERROR, 1),
    ],
)
def test_calls_are_judged_by_their_results_and_a_clean_end(
    changes: dict[str, object], verdict: Verdict, passed: int
) -> None:
    judged = judge_calls(["i1", "i2"], outcome(**changes), LIMITS)
    assert (judged.verdict, judged.passed) == (verdict, passed)
    assert bool(judged.detail) == (verdict is not Verdict.ACCEPTED)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"stdout": b"1\n2"}, Verdict.ACCEPTED),
        ({"stdout": b"1  \r\n2\n\n"}, Verdict.ACCEPTED),
        ({"stdout": b" 1\n2\n"}, Verdict.WRONG_ANSWER),
        ({"stdout": b"1\n\n2\n"}, Verdict.WRONG_ANSWER),
        ({"stdout": b"\xff\x00"}, Verdict.WRONG_ANSWER),
        ({"stdout": b"1\n2", "exit_code": 3}, Verdict.RUNTIME_ERROR),
        ({"stdout": b"1\n2", "exit_code": -signal.SIGSEGV}, Verdict.RUNTIME_ERROR),
        ({"stdout": b"1\n2", "killed": "wall", "exit_code": -9}, Verdict.TIME_LIMIT),
        ({"stdout": b"x" * 1024}, Verdict.OUTPUT_LIMIT),
        ({"exit_code": -signal.SIGXFSZ}, Verdict.OUTPUT_LIMIT),
        ({"exit_code": -signal.SIGKILL}, Verdict.MEMORY_LIMIT),
        ({"report": b"CSyntaxError: x\n", "exit_code": 1}, Verdict.COMPILE_ERROR),
    ],
)
def test_a_program_is_judged_by_its_output_and_a_clean_end(
    changes: dict[str, object], verdict: Verdict
) -> None:
    assert judge_program("1\n2\n", outcome(**changes), LIMITS).verdict is verdict


def test_details_are_short_printable_and_free_of_expected_values() -> None:
    hostile = outcome(stdout=b"\x1b[2J" + b"y" * 900)
    detail = judge_program("the-expected-value", hostile, LIMITS).detail
    assert len(detail) <= 200
    assert detail.isprintable()
    assert "the-expected-value" not in detail
