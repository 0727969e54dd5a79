import signal

import pytest

from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Verdict
from services.reward_service.judging.judge import judge_calls, judge_program
from services.reward_service.sandbox.execution import Outcome

LIMITS = Limits(cpu_s=1.0, memory_mb=64, output_kb=1)


def outcome(**changes: object) -> Outcome:
    facts: dict[str, object] = {
        "exit_code": 0,
        "killed": None,
        "cpu_s": 0.01,
        "wall_s": 0.01,
        "peak_kb": 1,
        "stdout": b"",
        "stderr": b"",
        "report": b"",
    }
    return Outcome(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "lines", "failure"),
    [
        ({"report": b"=i1\n=i2\n"}, 2, None),
        ({"report": b"=i1\n?of type object\n"}, 2, None),
        ({"report": b"=i1\n"}, 1, Verdict.RUNTIME_ERROR),
        ({"report": b""}, 0, Verdict.RUNTIME_ERROR),
        ({"report": b"=i1\n=i2\n=i3\n"}, 1, Verdict.RUNTIME_ERROR),
        ({"report": b"=i1\n=i2\n", "exit_code": 1}, 1, Verdict.RUNTIME_ERROR),
        ({"report": b"=i1\n!ValueError: x\n", "exit_code": 1}, 1, Verdict.RUNTIME_ERROR),
        ({"report": b"=i1\nMwhile running\n", "exit_code": 1}, 1, Verdict.MEMORY_LIMIT),
        ({"report": b"=i1\n", "killed": "cpu", "exit_code": -9}, 1, Verdict.TIME_LIMIT),
        ({"report": b"=i1\n=i2\n", "cpu_s": 1.5}, 1, Verdict.TIME_LIMIT),
        ({"report": b"CSyntaxError: x\n", "exit_code": 1}, 0, Verdict.COMPILE_ERROR),
        ({"report": b"=i1\n=i2"}, 1, Verdict.RUNTIME_ERROR),
        ({"report": b"=i1\n=" + b"x" * 1019, "exit_code": -25}, 1, Verdict.OUTPUT_LIMIT),
        ({"report": b"\xff\n=i2\n"}, 0, Verdict.RUNTIME_ERROR),
    ],
)
def test_calls_are_judged_by_their_results_and_a_clean_end(
    changes: dict[str, object], lines: int, failure: Verdict | None
) -> None:
    judged = judge_calls(2, outcome(**changes), LIMITS)
    assert len(judged.lines) == lines
    assert (judged.failure and judged.failure.verdict) == failure
    assert judged.failure is None or judged.failure.detail


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"stdout": b"1\n2"}, None),
        ({"exit_code": 3}, Verdict.RUNTIME_ERROR),
        ({"exit_code": -signal.SIGSEGV}, Verdict.RUNTIME_ERROR),
        ({"killed": "wall", "exit_code": -9}, Verdict.TIME_LIMIT),
        ({"stdout": b"x" * 1024}, Verdict.OUTPUT_LIMIT),
        ({"exit_code": -signal.SIGXFSZ}, Verdict.OUTPUT_LIMIT),
        ({"exit_code": -signal.SIGKILL}, Verdict.MEMORY_LIMIT),
        ({"exit_code": -signal.SIGABRT}, Verdict.RUNTIME_ERROR),
        ({"exit_code": -signal.SIGABRT, "stderr": b"'std::bad_alloc'"}, Verdict.MEMORY_LIMIT),
        ({"report": b"CSyntaxError: x\n", "exit_code": 1}, Verdict.COMPILE_ERROR),
    ],
)
def test_a_program_must_end_well(changes: dict[str, object], verdict: Verdict | None) -> None:
    judged = judge_program(outcome(**changes), LIMITS)
    assert (judged and judged.verdict) == verdict


def test_details_are_short_and_printable() -> None:
    hostile = outcome(exit_code=1, stderr=b"\x1b[2J" + b"y" * 900)
    judged = judge_program(hostile, LIMITS)
    assert judged is not None
    assert len(judged.detail) <= 200
    assert judged.detail.isprintable()
