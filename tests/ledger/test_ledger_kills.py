"""`kill -9` of a process that writes a ledger, at random moments, again and again."""

import multiprocessing
import random
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt

_KILLS = 12


def write_for_ever(path: Path, seed: int, told: Connection) -> None:
    """What a run writes, as fast as it can; tells the number of admitted groups and steps."""
    chance, ledger = random.Random(seed), Ledger(path)
    ledger.rollback(max(0, ledger.last_step() - chance.randint(0, 2)))
    step = ledger.last_step()
    while True:
        start = ledger.next_position()
        ledger.admit(
            [Prompt(position=start + n, epoch=0, task_id="t") for n in range(3)], version=step
        )
        for group in ledger.in_flight():
            ledger.rolled_out(group.group_id, oldest_version=step, tokens=chance.randint(1, 50))
            if chance.random() < 0.3:
                ledger.retry(group.group_id, reason="connection")
        first, second, third = (group.group_id for group in ledger.in_flight()[:3])
        step += 1
        ledger.close_batch(step, train=[first], filtered=[second])
        ledger.close_group(third, chance.choice(["failed", "expired"]), reason="r")
        ledger.note(step=step)
        told.send((start + 3, step))


@pytest.mark.usefixtures("each_file_system")
def test_the_ledger_balances_and_forgets_nothing_after_kill_9_at_random_moments(
    tmp_path: Path,
) -> None:
    path, chance = tmp_path / "ledger.sqlite", random.Random(1)
    context = multiprocessing.get_context("fork")
    admitted = waste = 0
    for kill in range(_KILLS):
        heard, told = context.Pipe(duplex=False)
        writer = context.Process(target=write_for_ever, args=(path, kill, told), daemon=True)
        writer.start()
        told.close()
        for _ in range(chance.randint(1, 12)):
            assert heard.poll(300), "the writer writes"
            admitted, step = heard.recv()
        writer.join(chance.uniform(0.0, 0.004))  # somewhere in the middle of the next ones
        assert writer.is_alive()
        writer.kill()
        writer.join()
        ledger = Ledger(path)
        assert ledger.imbalance() == 0
        assert ledger.counts().admitted >= admitted, "what was committed is there"
        assert ledger.last_step() >= step
        assert ledger.next_position() == ledger.counts().admitted
        assert ledger.counts().admitted % 3 == 0, "an admission is whole or not there"
        waste = sum(ledger.wasted().values())
        ledger.close()
        heard.close()
    assert waste > 0
