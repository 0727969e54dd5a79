"""The parts of the bus that a delivery uses."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from services.changes import Changes
from services.protocol.weights.weight_bus import Order
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest
from services.weight_bus.barrier import Barrier
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.delivery.canary_gaps import GoodGaps
from services.weight_bus.members.relays import Relays
from services.weight_bus.members.replicas import Replicas
from services.weight_bus.members.trainer_groups import TrainerGroups
from services.weight_bus.version_ledger import VersionLedger


@dataclass(frozen=True, kw_only=True)
class DeliveryContext:
    """Shared by the deliveries to all replicas.

    Attributes:
        config: deadlines.
        barrier: where replicas wait for each other before a commit, if they do.
        replicas: where the replica's state is kept.
        relays: who receives for the replicas of a node.
        trainers: who sends.
        canaries: the trainer's scores of the canary, by version.
        good_gaps: how far replicas' scores lie from those when all is well.
        ledger: records outcomes.
        changes: notifies of every change of the first four above and of `newest`.
        clock: monotonic seconds, the same as that of `replicas`.
        newest: the newest manifest and when it was published by `clock`.
        post: put an order into a member's mailbox.
        store: host and port of the rendezvous store.
        forget_keys: delete what the store keeps of links by their prefix.
        new_prefix: a link prefix for a replica that was never used before.
    """

    config: WeightBusConfig
    barrier: Barrier
    replicas: Replicas
    relays: Relays
    trainers: TrainerGroups
    canaries: Mapping[int, CanaryLogprobs]
    good_gaps: GoodGaps
    ledger: VersionLedger
    changes: Changes
    clock: Callable[[], float]
    newest: Callable[[], tuple[WeightManifest, float] | None]
    post: Callable[[str, Order], None]
    store: Callable[[], Awaitable[tuple[str, int]]]
    forget_keys: Callable[[str], None]
    new_prefix: Callable[[str], str]
