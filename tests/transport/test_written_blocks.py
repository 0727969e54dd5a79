"""Versions that trainer ranks of the receiver's node have written where it can map them."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
import torch

from services.protocol.weights.weight_bus import SendWeights, StageWeights, Transport
from services.trainer.snapshot.snapshot import Snapshot, SnapshotStore
from services.transport.bucket import digest
from services.transport.gloo import LinkBroken
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import BufferPool, Mappings, SharedBuffer
from services.transport.staged_version import StageFailed
from services.transport.version_bytes import VersionBytes, block_bytes

from .sender import HOST, Sender, send_snapshot

DEADLINE_S = 300.0
Tensors = dict[str, torch.Tensor]


class Node:
    """Trainer ranks, of which some write into one block and others into memory of their own."""

    def __init__(self, sender: Sender) -> None:
        self._sender, self._pool = sender, BufferPool()
        self._blocks: dict[int, SharedBuffer] = {}
        self.stores = [SnapshotStore() for _ in range(sender.world_size)]

    def write(
        self, tensors: Tensors, version: int, *, together: Collection[int] = (0, 1)
    ) -> StageWeights:
        """Take a snapshot of a version; returns the order to receive it."""
        order, payloads = self._sender.order(tensors, version, f"v{version}", target_bytes=256)
        manifest = order.manifest
        block = self._blocks[version] = self._pool.take(block_bytes(manifest))
        if old := self._blocks.pop(version - 2, None):
            self._pool.give(old)
        bytes_ = VersionBytes(manifest, block.bytes)
        for rank, buckets in enumerate(payloads):
            pieces = tuple((one,) for one in buckets)
            if rank in together:
                for bucket, payload in enumerate(buckets):
                    bytes_.write(payload, rank, bucket)
                pieces = tuple(tuple(bytes_.shards(rank, bucket)) for bucket in range(len(buckets)))
            assert tuple(map(digest, pieces)) == manifest.digests[rank]
            snapshot = Snapshot(
                version=version,
                buckets=pieces,
                digests=manifest.digests[rank],
                itemsize=4,
                place=block.place(0) if rank in together else None,
            )
            self.stores[rank].put(snapshot)
        ways = {True: Transport.SHARED_MEMORY, False: Transport.GLOO}
        links = tuple(
            replace(one, transport=ways[one.trainer_rank in together]) for one in order.links
        )
        return replace(order, links=links)

    async def send(self, order: StageWeights) -> int:
        """Carry out the ranks' side of an order; returns payload bytes."""
        sends = (
            asyncio.to_thread(send_snapshot, store, order, rank)
            for rank, store in enumerate(self.stores)
        )
        return sum(await asyncio.gather(*sends))


async def received(receiver: VersionReceiver, node: Node, order: StageWeights) -> int:
    """Have a version received and kept; returns payload bytes that were sent for it."""
    async with asyncio.timeout(DEADLINE_S):
        _, sent = await asyncio.gather(receiver.receive(order), node.send(order))
    receiver.keep()
    return sent


def held(receiver: VersionReceiver) -> Tensors:
    """What engines of the node map."""
    assert receiver.copy is not None
    assert receiver.place is not None
    mapped = Mappings().read(receiver.place, block_bytes(receiver.copy))
    return dict(VersionBytes(receiver.copy, mapped).named_tensors())


def same(found: Tensors, tensors: Tensors) -> bool:
    return all(torch.equal(found[name], one) for name, one in tensors.items())


def draw() -> Tensors:
    return {
        "a.weight": torch.randn(64, 16),
        "b.weight": torch.randn(41, 3),
        "c.bias": torch.ones(5),
    }


@pytest.fixture
def relay() -> VersionReceiver:
    return VersionReceiver(HOST, keeps_copy=True, shared=True)


async def test_nothing_is_copied_of_what_ranks_of_the_node_have_written(
    sender: Sender, relay: VersionReceiver
) -> None:
    node, tensors = Node(sender), draw()
    order = node.write(tensors, 3)
    assert await received(relay, node, order) == 0
    assert same(held(relay), tensors)
    written = node.stores[0].get(3)
    assert written is not None
    assert written.place is not None
    assert relay.place is not None
    assert relay.place.inode == written.place.inode


async def test_what_one_of_several_nodes_has_written_is_copied_and_the_rest_is_sent(
    sender: Sender, relay: VersionReceiver
) -> None:
    node, tensors = Node(sender), draw()
    order = node.write(tensors, 3, together=(1,))
    assert await received(relay, node, order) == sum(
        order.manifest.bucket_bytes(0, bucket) for bucket in range(len(order.manifest.buckets))
    )
    assert same(held(relay), tensors)
    written = node.stores[1].get(3)
    assert written is not None
    assert written.place is not None
    assert relay.place is not None
    assert relay.place.inode != written.place.inode, "it has no room for the rest"


async def test_bytes_that_changed_after_their_digest_are_not_copied(
    sender: Sender, relay: VersionReceiver
) -> None:
    node = Node(sender)
    order = node.write(draw(), 3, together=(1,))
    written = node.stores[1].get(3)
    assert written is not None
    written.buckets[0][0][0] ^= 1
    with pytest.raises(StageFailed, match="trainer rank 1: digest of bucket 0"):
        await received(relay, node, order)


async def test_ranks_do_not_write_over_a_version_that_is_still_held(
    sender: Sender, relay: VersionReceiver
) -> None:
    node, first = Node(sender), draw()
    await received(relay, node, node.write(first, 0))
    for version in range(1, 6):
        node.write(draw(), version)
    assert same(held(relay), first)


async def test_ranks_use_the_memory_again_that_nobody_holds(
    sender: Sender, relay: VersionReceiver
) -> None:
    node, places = Node(sender), set()
    for version in range(8):
        await received(relay, node, node.write(draw(), version))
        assert relay.place is not None
        places.add(relay.place.inode)
    assert len(places) == 3, "two that ranks can send, and the next"


async def test_a_version_that_was_written_over_meanwhile_is_not_taken(
    sender: Sender, relay: VersionReceiver
) -> None:
    node = Node(sender)
    late = node.write(draw(), 0)
    old = node.stores[0].get(0)
    for version in range(1, 4):
        node.write(draw(), version)
    assert old is not None
    for store in node.stores:
        store.put(old)
    with pytest.raises(StageFailed, match="written again"):
        await received(relay, node, late)


async def test_a_receiver_behind_the_first_gets_changes_that_nobody_had_sent(
    sender: Sender, relay: VersionReceiver
) -> None:
    node, behind = Node(sender), VersionReceiver(HOST, keeps_copy=True, shared=True)
    tensors = draw()
    sizes = []
    for version in range(4):
        order = replace(node.write(tensors, version), base=version - 1 if version else None)
        await received(relay, node, order)
        plain = tuple(
            replace(one, prefix=f"behind/{one.prefix}", transport=Transport.GLOO)
            for one in order.links
        )
        onward = replace(order, links=plain)
        sends = [
            relay.send(SendWeights(version=version, link=link, base=order.base)) for link in plain
        ]
        async with asyncio.timeout(DEADLINE_S):
            _, *sent = await asyncio.gather(behind.receive(onward), *sends)
        behind.keep()
        sizes.append(sum(sent))
        assert same(held(behind), tensors)
        tensors = {name: one.clone() for name, one in tensors.items()}
        tensors["a.weight"][::9, 3] += 1.0
    whole = 4 * sum(one.numel() for one in tensors.values())
    assert sizes == [whole, *[8 * len(tensors["a.weight"][::9])] * 3]


async def test_a_plain_attempt_after_a_failure_brings_everything_over_the_wire(
    sender: Sender, relay: VersionReceiver
) -> None:
    node, tensors = Node(sender), draw()
    order = node.write(tensors, 3)
    for store in node.stores:
        snapshot = store.get(3)
        assert snapshot is not None
        store.put(replace(snapshot, place=None))
    soon = tuple(replace(one, timeout_s=0.5) for one in order.links)
    with pytest.raises((StageFailed, LinkBroken)):
        await received(relay, node, replace(order, links=soon))
    plain = tuple(
        replace(one, prefix=f"again/{one.prefix}", transport=Transport.GLOO) for one in order.links
    )
    assert await received(relay, node, replace(order, links=plain)) == order.manifest.total_bytes
    assert same(held(relay), tensors)
