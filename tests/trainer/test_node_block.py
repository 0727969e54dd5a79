"""Blocks of versions: of the ranks together on one node, else of each rank its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.trainer.snapshot import node_block
from services.trainer.snapshot.node_block import Block, NodeBlocks

HERE, ELSEWHERE = "boot/here/1000", "boot/elsewhere/1000"
NBYTES = 1 << 12


class Ranks:
    """Threads in the place of processes; each is a rank of one group."""

    def __init__(self, domains: Sequence[str], free: Sequence[int]) -> None:
        self._domains, self._free = domains, free
        self._own = threading.local()
        self._gathered: list[Any] = [None] * len(domains)
        self._barrier = threading.Barrier(len(domains), timeout=30)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """The results of `work` on all ranks, or what it raised there."""

        def on_rank(rank: int) -> Any:
            self._own.rank = rank
            try:
                return work(rank)
            except InvalidInput as refused:
                return refused

        with ThreadPoolExecutor(len(self._domains)) as threads:
            return list(threads.map(on_rank, range(len(self._domains))))

    def get_rank(self) -> int:
        rank: int = self._own.rank
        return rank

    def memory_domain(self) -> str:
        return self._domains[self.get_rank()]

    def free_memory(self) -> int:
        return self._free[self.get_rank()]

    def all_gather(self, value: object) -> list[Any]:
        self._gathered[self.get_rank()] = value
        self._barrier.wait()
        found = list(self._gathered)
        self._barrier.wait()
        return found


@pytest.fixture
def ranks_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    def start(*domains: str, free: Sequence[int] = ()) -> Ranks:
        ranks = Ranks(domains, free or [1 << 30] * len(domains))
        monkeypatch.setattr(node_block.dist, "get_rank", ranks.get_rank)
        for name in ("memory_domain", "free_memory", "all_gather"):
            monkeypatch.setattr(node_block, name, getattr(ranks, name))
        return ranks

    return start


def take(senders: int) -> Callable[[int], Block | None]:
    return lambda _: NodeBlocks(NBYTES, senders).take()


def test_ranks_of_one_node_write_into_one_block(ranks_on: Callable[..., Ranks]) -> None:
    first, second = ranks_on(HERE, HERE).run(take(2))
    assert first.place == second.place
    assert first.is_filled
    assert second.is_filled
    assert first.held is None
    assert second.held is not None
    second.buffer.bytes[7] = 99
    assert first.buffer.bytes[7] == 99


def test_ranks_of_several_nodes_have_a_block_each(ranks_on: Callable[..., Ranks]) -> None:
    blocks = ranks_on(HERE, HERE, ELSEWHERE).run(take(3))
    assert len({block.place.inode for block in blocks}) == 3
    assert not any(block.is_filled or block.held for block in blocks)


def test_a_rank_with_a_copy_of_the_model_writes_nothing(ranks_on: Callable[..., Ranks]) -> None:
    first, second = ranks_on(HERE, ELSEWHERE).run(take(1))
    assert first.is_filled
    assert second is None


def test_a_block_is_not_written_again_while_another_rank_reads_it(
    ranks_on: Callable[..., Ranks],
) -> None:
    ranks = ranks_on(HERE, HERE)

    def three_versions(rank: int) -> list[int]:
        blocks, inodes = NodeBlocks(NBYTES, 2), []
        for keeps in (True, False, False):
            block = blocks.take()
            assert block is not None
            inodes.append(block.place.inode)
            blocks.give(block)
            if keeps:
                kept = block  # only the second rank's hold counts
            ranks.all_gather(None)
            if not keeps:
                del block
            ranks.all_gather(None)
        assert kept.buffer.bytes is not None
        return inodes

    found, same = ranks.run(three_versions)
    assert found == same
    first, second, third = found
    assert first != second, "the other rank still sends from it"
    assert second == third


def test_a_node_with_too_little_memory_is_refused_on_all_ranks(
    ranks_on: Callable[..., Ranks],
) -> None:
    together = ranks_on(HERE, HERE, free=[3 * NBYTES - 1] * 2).run(take(2))
    assert all(isinstance(one, InvalidInput) for one in together)
    assert "rank 0" in str(together[0])
    # A node that has a third of the ranks keeps a third of the versions.
    apart = ranks_on(HERE, ELSEWHERE, ELSEWHERE, free=[NBYTES] + [2 * NBYTES - 1] * 2)
    refused = apart.run(take(3))
    assert all("rank 1" in str(one) for one in refused)
