"""A run that learned nothing says so, and what to try; while it runs, it warns."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.ledger.ledger import Ledger, ledger_of
from services.ledger.sample_group import Prompt
from services.orchestrator.observers.findings import STALE, findings, gain, of_no_gain
from services.protocol.run.orchestrator import LedgerCounts, RunConfig, RunState
from tests.orchestrator.fakes import Asked, run_to_end, world

pytestmark = pytest.mark.usefixtures("no_drawing")

RUN = RunConfig(name="r", model="m", task_file="t", steps=9, batch_groups=2, group_size=4)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Of 12 groups in flight."""
    made = Ledger(tmp_path / "ledger.sqlite")
    made.admit([Prompt(position=n, epoch=0, task_id=f"t{n}") for n in range(12)], version=0)
    yield made
    made.close()


def _filter(ledger: Ledger, reasons: dict[str, int]) -> None:
    waiting = [group.group_id for group in ledger.in_flight()]
    for reason, count in reasons.items():
        for _ in range(count):
            ledger.close_group(waiting.pop(0), "filtered", reason=reason)


def test_few_closed_groups_say_nothing_yet(ledger: Ledger) -> None:
    _filter(ledger, {"all rewards 0": 5})
    assert findings(RUN, ledger) == []


@pytest.mark.parametrize(
    ("reasons", "advice"),
    [
        ({"all rewards 0": 9, "all rewards 1": 1}, "The reward was not reached"),
        ({"all rewards 1": 9, "all rewards 0": 1}, "The tasks are solved already"),
        ({"all rewards equal": 8, "all rewards 0": 2}, "Give rewards that tell answers apart"),
    ],
)
def test_equal_rewards_are_told_by_which_they_were(
    ledger: Ledger, reasons: dict[str, int], advice: str
) -> None:
    _filter(ledger, reasons)
    (found,) = findings(RUN, ledger)
    assert found.kind == "equal_rewards"
    assert "10 of 10 sample groups (100%) taught nothing" in found.text
    for reason, count in reasons.items():
        assert f"{count} {reason}" in found.text
    assert found.advice.startswith(advice)


def test_groups_that_were_too_old_are_told_with_the_bound(ledger: Ledger) -> None:
    first, second, *rest = [group.group_id for group in ledger.in_flight()]
    for group_id in (first, second):
        ledger.close_group(group_id, "expired", reason=STALE)
    ledger.close_batch(1, train=rest[:6], filtered=())
    for group_id in rest[6:]:
        ledger.close_group(group_id, "expired", reason="the run is over")
    (found,) = findings(RUN, ledger)
    assert found.text.startswith("2 of 8 sample groups (25%) were dropped")
    assert "schedule.max_staleness (now 0)" in found.advice


def test_a_run_is_judged_by_its_held_out_rate_else_by_its_rewards() -> None:
    rewards = [0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5]
    assert gain(RUN, 0.1, 0.4, rewards) == ("held-out pass rate", 0.1, 0.4)
    assert gain(RUN, 0.1, None, rewards) == ("mean reward", 0.1, 0.5)
    assert gain(RUN, 0.1, 0.1, rewards[:7]) is None, "so few steps prove nothing"


def test_steps_of_given_answers_alone_have_no_reward_to_judge_by() -> None:
    warmed_up = [None, None, 0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5]
    assert gain(RUN, None, None, warmed_up) == ("mean reward", 0.1, 0.5)
    assert gain(RUN, None, None, [None] * 9) is None
    assert gain(RUN, 0.1, 0.4, [None] * 9) == ("held-out pass rate", 0.1, 0.4)


@pytest.mark.parametrize(
    "chosen", [{"schedule": {"dynamic_sampling": True}}, {"curriculum": {}}], ids=str
)
def test_rewards_of_chosen_groups_do_not_judge_a_run(chosen: dict[str, object]) -> None:
    run = RunConfig.model_validate(RUN.model_dump() | chosen)
    assert gain(run, None, None, [0.5] * 9) is None
    assert gain(run, 0.1, 0.4, [0.5] * 9) == ("held-out pass rate", 0.1, 0.4)


def test_failed_groups_are_told_with_their_reasons(ledger: Ledger) -> None:
    failed, *rest = [group.group_id for group in ledger.in_flight()]
    ledger.close_group(failed, "failed", reason="http_400")
    ledger.close_group(rest.pop(), "failed", reason="deadline")
    ledger.close_batch(1, train=rest[:6], filtered=())
    (found,) = findings(RUN, ledger)
    assert found.kind == "failures"
    assert found.text.startswith("2 of 8 sample groups (25%) failed: 1 ")
    assert "1 http_400" in found.text


@pytest.mark.parametrize(
    ("measured", "counts", "advice"),
    [
        (("held-out pass rate", 0.5, 0.3), LedgerCounts(trained=9), "made the model worse: lower"),
        (("held-out pass rate", 1.0, 0.2), LedgerCounts(trained=9), "made the model worse: lower"),
        (("held-out pass rate", 0.5, 0.47), LedgerCounts(trained=9), "hardly moved"),
        (
            ("held-out pass rate", 0.0, 0.0),
            LedgerCounts(trained=9),
            "raise algorithm.learning_rate",
        ),
        (("mean reward", 0.1, 0.1), LedgerCounts(trained=1, filtered=9), "the findings below"),
    ],
)
def test_what_to_try_follows_from_what_happened(
    measured: tuple[str, float, float], counts: LedgerCounts, advice: str
) -> None:
    found = of_no_gain(RUN, counts, measured)
    assert found is not None
    assert found.text.startswith(f"nothing was learned: {measured[0]}")
    assert advice in found.advice


@pytest.mark.parametrize(
    "measured",
    [
        None,
        ("mean reward", 0.1, 0.3),
        ("mean reward", 1.0, 1.0),
        ("held-out pass rate", 1.0, 0.95),
    ],
)
def test_a_run_that_learned_or_had_nothing_to_learn_is_not_blamed(
    measured: tuple[str, float, float] | None,
) -> None:
    assert of_no_gain(RUN, LedgerCounts(trained=9), measured) is None


async def test_a_run_that_learned_nothing_ends_with_what_happened_and_what_to_try(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, no_signal_batches=1000) as cluster:
        groups = itertools.count(1)

        def answer(asked: Asked, index: int, version: int) -> bool:
            """One answer of every twentieth group is right, and none to a held-out task."""
            return asked.body["n"] > 1 and index == 0 and next(groups) % 20 == 0

        cluster.router.answers = answer
        status = await run_to_end(cluster, cluster.run_config(steps=8))
    assert status.state is RunState.FINISHED
    assert "all steps done; nothing was learned: " in status.detail
    assert status.summary is not None
    assert [one.kind for one in status.findings] == ["no_gain", "equal_rewards"]
    assert status.findings == status.summary.findings
    with ledger_of(status.run_dir) as ledger:
        assert ledger.reasons("filtered") == {"all rewards 0": status.ledger.filtered}
