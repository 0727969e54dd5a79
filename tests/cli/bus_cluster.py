"""A private Ray that asks for a token, with a weight bus and one scripted replica.

Prints the cluster's address when the replica has weights; ends when its input does.
"""

import asyncio
import os
import sys

import ray

from millrace_tools.cluster.private_cluster import PrivateCluster
from services.peers import bus_peer
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.protocol.weights.weight_bus import BUS_ACTOR, NAMESPACE, WeightBus
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.actor import WeightBusActor
from services.weight_bus.config import WeightBusConfig

START_S = 400.0


def hello() -> ReplicaHello:
    return ReplicaHello(
        replica_id="r1",
        address="http://127.0.0.1:1",
        committed_version=4,
        model="policy",
        max_model_len=16,
        pid=os.getpid(),
        commit_timeout_s=1.0,
    )


async def play() -> None:
    bus = bus_peer()
    async with asyncio.timeout(START_S):
        while True:
            try:
                await bus.register_replica(hello())
                break
            except NotReady:
                continue  # its process is still starting: every call has a deadline of its own
    digests = (("00",),)
    await bus.publish(
        WeightManifest(version=5, train_step=9, tensors=(), buckets=(), digests=digests)
    )
    obeying = asyncio.create_task(obey(bus))
    print(ray.get_runtime_context().gcs_address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    obeying.cancel()


async def obey(bus: WeightBus) -> None:
    """Do what operators ask, but for sleeping."""
    acknowledged, held = 0, Hold.NONE
    while True:
        answer = await bus.next_orders("r1", acknowledged, 1.0)
        acknowledged = answer.last
        for order in answer.orders:
            assert isinstance(order, ControlReplica)
            held = Hold.PAUSED if order.action is ControlAction.PAUSE else Hold.NONE
            sleepless = InvalidInput("action", order.action.value, "Only engines on GPUs can.")
            await bus.report_control(
                ControlOutcome(
                    replica_id="r1",
                    control_id=order.control_id,
                    held=held,
                    has_weights=True,
                    refusal=sleepless if order.action is ControlAction.SLEEP else None,
                    error=None,
                    seconds=0.25,
                )
            )


def main() -> None:
    with PrivateCluster(num_cpus=1) as cluster:
        os.environ["RAY_AUTH_MODE"] = "token"  # which Ray has read before
        cluster.start()
        bus = (
            ray.remote(WeightBusActor)
            .options(name=BUS_ACTOR, namespace=NAMESPACE, num_cpus=0, max_concurrency=100)
            .remote(WeightBusConfig())
        )
        asyncio.run(play())
        del bus  # without a handle Ray would end it


if __name__ == "__main__":
    main()
