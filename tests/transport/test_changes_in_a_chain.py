"""Changes go along a chain of relays: the third one gets them by way of the second."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import torch

from services.protocol.weights.weight_bus import SendWeights, StageWeights
from services.trainer.snapshot.snapshot import Snapshot, SnapshotStore
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import Mappings
from services.transport.version_bytes import VersionBytes, block_bytes

from .sender import HOST, Sender, send_snapshot

DEADLINE_S = 300.0
NODES = 3
Tensors = dict[str, torch.Tensor]


class Trainer:
    """Ranks that send snapshots as a trainer's do, whole or as changes."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._stores = [SnapshotStore() for _ in range(sender.world_size)]

    def orders(self, tensors: Tensors, version: int, base: int | None) -> list[StageWeights]:
        """Take a snapshot; what each node of a chain is told to receive."""
        orders = []
        for node in range(NODES):
            order, payloads = self._sender.order(tensors, version, f"v{version}n{node}", 256)
            orders.append(replace(order, base=base, in_place=True))
        for store, buckets, digests in zip(
            self._stores, payloads, order.manifest.digests, strict=True
        ):
            store.put(
                Snapshot(
                    version=version,
                    buckets=tuple((bucket,) for bucket in buckets),
                    digests=digests,
                    itemsize=4,
                )
            )
        return orders

    async def send(self, order: StageWeights) -> int:
        """Send to the first node; returns payload bytes."""
        return sum(
            await asyncio.gather(
                *(
                    asyncio.to_thread(send_snapshot, store, order, rank)
                    for rank, store in enumerate(self._stores)
                )
            )
        )


async def pass_along(
    trainer: Trainer, nodes: list[VersionReceiver], orders: list[StageWeights]
) -> list[int]:
    """One version through the chain; payload bytes to each node."""
    feeding = [asyncio.create_task(trainer.send(orders[0]))]
    for node, onward in zip(nodes, orders[1:], strict=False):
        sends = [
            node.send(SendWeights(version=onward.manifest.version, link=link, base=onward.base))
            for link in onward.links
        ]
        feeding.append(asyncio.create_task(summed(sends)))
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(VersionReceiver.receive, nodes, orders))
        sent = await asyncio.gather(*feeding)
    for node in nodes:
        node.keep()
    return list(sent)


async def summed(sends: list[Coroutine[Any, Any, int]]) -> int:
    return sum(await asyncio.gather(*sends))


def held(node: VersionReceiver) -> Tensors:
    """What engines of the node map."""
    assert node.copy is not None
    assert node.place is not None
    mapped = Mappings().read(node.place, block_bytes(node.copy))
    return dict(VersionBytes(node.copy, mapped).named_tensors())


async def test_the_third_node_gets_changes_by_way_of_the_second(sender: Sender) -> None:
    trainer = Trainer(sender)
    nodes = [VersionReceiver(HOST, keeps_copy=True, shared=True) for _ in range(NODES)]
    tensors = {"a.weight": torch.randn(64, 16), "b.weight": torch.randn(40, 8)}
    whole = await pass_along(trainer, nodes, trainer.orders(tensors, 3, None))
    size = 4 * sum(one.numel() for one in tensors.values())
    assert whole == [size] * NODES
    for version in (4, 5):  # the second ones go onto what changes made
        tensors = {name: one.clone() for name, one in tensors.items()}
        tensors["a.weight"][::9, 3] += 1.0
        changes = await pass_along(trainer, nodes, trainer.orders(tensors, version, version - 1))
        assert changes == [8 * len(tensors["a.weight"][::9])] * NODES
        for node in nodes:
            found = held(node)
            assert all(torch.equal(found[name], one) for name, one in tensors.items())
