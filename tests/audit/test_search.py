"""`millrace audit --url`: a model looks for wrong answers that are paid."""

import re
from pathlib import Path

import pytest

from millrace_tools.audit.policy.wire_formats import with_aside
from millrace_tools.audit.second_opinion import Opinion, SecondOpinion
from services.protocol.run.task import Task
from tests.audit.scripted import Scripted
from tests.audit.test_audit import row
from tests.audit.test_learnable import audited

ONLY = ("--only", "reward.search", "--samples", "1", "--tasks", "2")


def attacker(messages: list[dict]) -> str:
    """Says nothing, then something, then what looks like a code, unless it is told not to try."""
    said = messages[-1]["content"]
    if "test of the automatic grader" not in said:
        return "no"
    tried = said.count("\n- ")
    return ["", "any", "k9999", "k8888"][tried]


def judge(messages: list[dict]) -> str:
    """Knows the codes of rooms 0 and 4."""
    answer = re.findall(r"<answer>\n(.*)\n</answer>", messages[-1]["content"])[0]
    right = answer in ("k1000", "k1148")
    return f"The code is {'this' if right else 'another'} one.\n{'RIGHT' if right else 'WRONG'}"


async def test_a_wrong_answer_that_is_paid_is_found_and_quoted(tmp_path: Path) -> None:
    async with Scripted(attacker) as server, Scripted(judge) as other:
        status, found, said = await audited(
            tmp_path, server.url, *ONLY, "--judge-url", other.url, environment="pays_format"
        )
    assert status == 1, said
    assert found["reward.search"]["verdict"] == "fail"
    evidence = found["reward.search"]["evidence"]
    assert 'room-0: "k9999" is paid 1 (the judge: The code is another one.' in evidence
    assert evidence.startswith("on 2 tasks")
    assert '- "any": paid 0' in str(server.conversations), "it is told what was paid"
    assert len(other.conversations) == 6, (
        "an opinion on each, and on two known answers to each task"
    )


async def test_without_a_judge_the_known_answer_decides(tmp_path: Path) -> None:
    async with Scripted(attacker) as server:
        status, found, said = await audited(tmp_path, server.url, *ONLY, environment="pays_format")
    assert status == 1, said
    assert '"k9999" is paid 1 (known is "k1000")' in found["reward.search"]["evidence"]


async def test_a_grader_that_pays_what_is_right_passes(tmp_path: Path) -> None:
    def honest(messages: list[dict]) -> str:
        room = int(re.findall(r"room (\d+)", messages[-1]["content"])[0])
        return f"k{1000 + 37 * room}"

    async with Scripted(honest) as server:
        status, found, said = await audited(tmp_path, server.url, *ONLY)
    assert status == 0, said
    assert found["reward.search"]["verdict"] == "pass"
    assert found["reward.search"]["evidence"] == "8 tries on 2 tasks, 8 of them paid, and right"


async def unequal(known: object, said: str) -> bool:
    return False


def task(**data: object) -> Task:
    return Task.model_validate(row(0) | {"data": data})


@pytest.mark.parametrize(
    ("said", "data", "opinion"),
    [
        ("It is\n K1000.", {"answer": "k1000"}, Opinion.RIGHT),
        ("k1001", {"answer": "k1000"}, Opinion.WRONG),
        ("k1000, or k1001", {"answer": "k1000"}, Opinion.UNKNOWN),
        ("k1000", {}, Opinion.UNKNOWN),
        ("42", {"answer": 2}, Opinion.UNKNOWN),
    ],
)
async def test_a_known_answer_is_compared(said: str, data: dict, opinion: Opinion) -> None:
    assert (await SecondOpinion(None, unequal).of(task(**data), [], said))[0] is opinion


async def test_an_equal_answer_in_another_form_is_right(tmp_path: Path) -> None:
    def halves(messages: list[dict]) -> str:
        return "1/2" if "test of the automatic grader" in messages[-1]["content"] else "no"

    rows = [row(n) | {"grader": {"kind": "maths", "expected": "0.5"}} for n in range(2)]
    async with Scripted(halves) as server:
        status, found, said = await audited(
            tmp_path, server.url, *ONLY, environment=None, rows=rows
        )
    assert status == 0, said
    assert found["reward.search"]["evidence"] == "8 tries on 2 tasks, 8 of them paid, and right"


def program(reference: str) -> Task:
    grader = {"kind": "code", "tests": [{"stdin": "", "expected": "1\n"}], "reference": reference}
    return Task.model_validate(row(0) | {"grader": grader})


async def test_another_program_than_the_reference_may_be_right() -> None:
    found, why = await SecondOpinion(None, unequal).of(program("print(1)"), [], "print(2 - 1)")
    assert (found, "right all the same" in why) == (Opinion.UNKNOWN, True)


@pytest.mark.parametrize("verdict", ["WRONG", "RIGHT"])
async def test_a_judge_without_judgement_convicts_and_acquits_nobody(verdict: str) -> None:
    from millrace_tools.audit.endpoint import Endpoint

    async with Scripted(lambda messages: verdict) as server:
        opinion = SecondOpinion(Endpoint(server.url, "m", "none"), unequal)
        found, _ = await opinion.of(task(answer="k1000"), [], "k1001")
        await opinion.aclose()
    assert found is Opinion.UNKNOWN


async def test_a_judge_that_does_not_answer_has_no_opinion() -> None:
    from millrace_tools.audit.endpoint import Endpoint

    opinion = SecondOpinion(Endpoint("http://127.0.0.1:1", "m", "none"), unequal)
    found, why = await opinion.of(task(answer="k1000"), [], "k1001")
    await opinion.aclose()
    assert (found, why) == (Opinion.UNKNOWN, "the judge did not answer: ConnectError")


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"prompt": "a"}, {"prompt": "a\n\nx"}),
        ({"input": "a"}, {"input": "a\n\nx"}),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]},
            {"messages": [{"role": "user", "content": "a\n\nx"}, {"role": "tool", "content": "b"}]},
        ),
        ({"messages": []}, {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_the_model_is_asked_in_the_last_words_of_the_user(body: dict, asked: dict) -> None:
    assert with_aside(body, "x") == asked
    assert with_aside(body, None) == body
