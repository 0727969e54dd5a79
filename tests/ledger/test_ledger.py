"""The ledger: double entry, one ending for each group, and nothing lost by a kill."""

import random
import shutil
from pathlib import Path

import pytest

from services.ledger.ledger import Ledger, LedgerError
from services.ledger.sample_group import Prompt
from services.orchestrator.tasks.prompts import PromptOrder

pytestmark = pytest.mark.usefixtures("each_file_system")


def prompts(count: int, start: int = 0) -> list[Prompt]:
    return [
        Prompt(position=position, epoch=0, task_id=f"task-{position}")
        for position in range(start, start + count)
    ]


@pytest.fixture
def ledger(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    yield ledger
    ledger.close()


def test_a_group_closes_exactly_once(ledger: Ledger) -> None:
    first, second = (group.group_id for group in ledger.admit(prompts(2), version=1))
    ledger.close_group(first, "failed", reason="deadline")
    with pytest.raises(LedgerError):
        ledger.close_group(first, "expired")
    with pytest.raises(LedgerError):
        ledger.close_batch(1, train=[second, first], filtered=[])
    assert ledger.counts().in_flight == 1, "a batch is closed as a whole or not at all"
    assert ledger.imbalance() == 0


def test_a_group_that_was_never_admitted_cannot_close(ledger: Ledger) -> None:
    with pytest.raises(LedgerError):
        ledger.close_group(1, "failed")


def test_a_place_in_the_prompt_order_is_admitted_once(ledger: Ledger) -> None:
    ledger.admit(prompts(3), version=1)
    with pytest.raises(Exception, match="UNIQUE"):
        ledger.admit(prompts(1, start=2), version=1)
    assert ledger.counts().admitted == 3
    assert ledger.next_position() == 3


def test_tokens_of_failed_attempts_stay_in_the_account(ledger: Ledger) -> None:
    (group,) = ledger.admit(prompts(1), version=1)
    ledger.rolled_out(group.group_id, oldest_version=None, tokens=7)
    assert ledger.retry(group.group_id, reason="connection") == 2
    ledger.rolled_out(group.group_id, oldest_version=1, tokens=11)
    ledger.close_batch(1, train=[group.group_id], filtered=[])
    assert ledger.token_counts().trained == 18
    assert ledger.imbalance() == 0


def test_an_imbalance_is_seen(ledger: Ledger) -> None:
    ledger.admit(prompts(2), version=1)
    ledger._db.execute("DELETE FROM groups WHERE group_id = 2")
    assert ledger.imbalance() == 1


def test_a_rollback_after_which_batches_are_the_same_again_opens_filtered_groups_too(
    ledger: Ledger,
) -> None:
    ids = [group.group_id for group in ledger.admit(prompts(5), version=1)]
    ledger.close_batch(1, train=ids[:1], filtered=ids[1:2])
    ledger.close_batch(2, train=ids[2:3], filtered=ids[3:4])
    assert ledger.rollback(1, filtered=True) == 2
    assert [group.group_id for group in ledger.in_flight()] == ids[2:]
    assert ledger.imbalance() == 0


def test_a_rollback_opens_what_later_steps_trained(ledger: Ledger) -> None:
    ids = [group.group_id for group in ledger.admit(prompts(6), version=1)]
    for group_id in ids[:5]:
        ledger.rolled_out(group_id, oldest_version=1, tokens=3)
    ledger.close_batch(1, train=ids[:2], filtered=[])
    ledger.close_batch(2, train=ids[2:3], filtered=ids[3:4])
    assert ledger.last_step() == 2
    assert ledger.rollback(1) == 1
    again = ledger.in_flight()
    assert [group.group_id for group in again] == [ids[2], ids[4], ids[5]]
    assert [group.attempt for group in again] == [2, 2, 1], "the last one was cut off"
    assert ledger.counts().model_dump() == {
        "admitted": 6,
        "trained": 2,
        "filtered": 1,
        "expired": 0,
        "failed": 0,
        "in_flight": 3,
    }
    assert ledger.last_step() == 1
    assert ledger.imbalance() == 0


def test_an_attempt_of_other_policy_versions_does_not_go_on(ledger: Ledger) -> None:
    ledger.admit(prompts(1), version=1)
    ledger.rollback(0, comparable=False)
    assert [group.attempt for group in ledger.in_flight()] == [2]


def test_facts_survive(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.note(heldout_before=0.25, tokens=7)
    ledger.note(tokens=9)
    ledger.close()
    ledger = Ledger(tmp_path / "l.sqlite")
    assert (ledger.fact("heldout_before"), ledger.fact("tokens")) == (0.25, 9)
    assert ledger.fact("pushes", 0) == 0
    ledger.close()


def test_the_ledger_balances_after_a_kill_at_every_point(tmp_path: Path) -> None:
    """The files are copied, as a kill would leave them, inside and after each transition."""
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    chance = random.Random(0)
    copies: list[tuple[Path, int]] = []

    def killed_here(*_: object) -> None:
        folder = tmp_path / f"kill-{len(copies)}"
        folder.mkdir()
        for file in tmp_path.glob("ledger.sqlite*"):
            shutil.copy(file, folder)
        copies.append((folder / "ledger.sqlite", ledger.counts().admitted))

    # Before every single statement of every transaction.
    ledger._db.connection.set_trace_callback(
        lambda statement: killed_here() if statement.startswith(("UPDATE", "INSERT")) else None
    )
    position, step, open_ids = 0, 0, []
    for _ in range(12):
        open_ids += [g.group_id for g in ledger.admit(prompts(4, position), version=step)]
        position += 4
        for group_id in open_ids[-4:]:
            ledger.rolled_out(group_id, oldest_version=step, tokens=chance.randint(1, 50))
        step += 1
        chance.shuffle(open_ids)
        ledger.close_batch(step, train=open_ids[:2], filtered=open_ids[2:3])
        ledger.close_group(open_ids[3], chance.choice(["failed", "expired"]))
        open_ids = open_ids[4:]
    ledger.rollback(step - 3)
    ledger._db.connection.set_trace_callback(None)
    ledger.close()

    assert len(copies) > 100
    for copy, _ in copies[::3]:
        reopened = Ledger(copy)
        assert reopened.imbalance() == 0
        admitted = reopened.counts().admitted
        assert admitted % 4 == 0, "an admission is whole or not there"
        assert reopened.next_position() == admitted
        reopened.close()


def test_no_prompt_of_an_epoch_is_skipped_or_repeated() -> None:
    order = PromptOrder(seed=3, count=7)
    seen = [order.at(position) for position in range(21)]
    for epoch in range(3):
        part = seen[7 * epoch : 7 * epoch + 7]
        assert {e for e, _ in part} == {epoch}
        assert sorted(index for _, index in part) == list(range(7))
    assert [i for _, i in seen[:7]] != [i for _, i in seen[7:14]], "epochs are shuffled anew"


def test_the_order_is_the_same_after_a_resume_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    order = PromptOrder(seed=3, count=7)
    whole = [order.at(position) for position in range(20)]
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.admit(prompts(10), version=1)
    ledger.close()
    ledger = Ledger(tmp_path / "l.sqlite")
    resumed = PromptOrder(seed=3, count=7)
    start = ledger.next_position()
    assert [resumed.at(position) for position in range(start, 20)] == whole[start:]
    ledger.close()


def test_another_seed_is_another_order() -> None:
    orders = [[PromptOrder(seed=s, count=50).at(p) for p in range(50)] for s in (0, 1)]
    assert orders[0] != orders[1]


def test_wasted_tokens_are_told_by_cause_and_account_for_every_token(ledger: Ledger) -> None:
    ids = [group.group_id for group in ledger.admit(prompts(5), version=1)]
    for group_id in ids:
        ledger.rolled_out(group_id, oldest_version=1, tokens=10)
    ledger.retry(ids[0], reason="connection")
    ledger.rolled_out(ids[0], oldest_version=1, tokens=7)
    ledger.close_batch(1, train=ids[:2], filtered=ids[2:3])
    ledger.close_group(ids[3], "expired", reason="stale")
    assert ledger.wasted() == {"again: connection": 10, "filtered": 10, "expired: stale": 10}
    assert (ledger.kept().trained, ledger.kept().in_flight) == (17, 10)
    ledger.rollback(0)
    assert ledger.wasted()["again: rollback"] == 27, "what two trained and one open group had"
    assert ledger.imbalance() == 0


def test_tokens_whose_fate_is_not_told_are_an_imbalance(ledger: Ledger) -> None:
    (group,) = ledger.admit(prompts(1), version=1)
    ledger.rolled_out(group.group_id, oldest_version=1, tokens=10)
    ledger._db.execute("UPDATE groups SET kept = 4")
    assert ledger.imbalance() == 6
