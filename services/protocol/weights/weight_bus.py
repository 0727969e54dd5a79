"""The interface of the weight bus: requests, orders and reports.

Members (rollout servers, relays of nodes, trainer ranks) register and then long-poll for orders.
Orders are numbered per member and are delivered again until acknowledged, so a member must treat
an order that it has already carried out as done.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from services.protocol.weights.hello import RelayHello, ReplicaHello, TrainerHello
from services.protocol.weights.place import Place
from services.protocol.weights.replica_control import ControlOutcome, ControlReplica
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest

BUS_ACTOR = "weight_bus"
"""Name of the detached actor."""

RELAY_ACTOR = "weight_relay/"
"""Prefix of the names of the nodes' detached relays; Ray's id of the node follows."""

LOAN_S = 30.0
"""How long a loan of devices holds without a word of the borrower."""

NAMESPACE = "millrace"
"""Ray namespace of every named Millrace actor."""


class ReplicaState(StrEnum):
    """Life of a rollout server as the bus sees it."""

    JOINING = "joining"
    CATCHING_UP = "catching_up"
    LIVE = "live"
    STAGING = "staging"
    COMMITTING = "committing"
    PAUSED = "paused"
    ASLEEP = "asleep"
    LENT = "lent"
    SUSPECT = "suspect"
    DEAD = "dead"


class Transport(StrEnum):
    """The way of a bucket's bytes to a replica."""

    GLOO = "gloo"
    NCCL = "nccl"
    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True, kw_only=True)
class Link:
    """One trainer rank, or a stripe of its buckets, to one replica: a process group of its own.

    Attributes:
        replica_id: the receiver.
        trainer_rank: the sender's rank; the sender is process 0 of the group and the receiver
            process 1.
        store_host: address of the bus's rendezvous store.
        store_port: its port.
        prefix: unique per epoch; never used twice.
        timeout_s: deadline of every operation on the link, seconds.
        transport: how bytes pass.
        world_size: the sender and its receivers.
        interface: network interface of both ends; empty: the address of each end's node.
        stripe: the link carries the buckets whose index is this one modulo `stripes`.
        stripes: links that carry the buckets of this trainer rank side by side.
    """

    replica_id: str
    trainer_rank: int
    store_host: str
    store_port: int
    prefix: str
    timeout_s: float
    transport: Transport = Transport.GLOO
    world_size: int = 2
    interface: str = ""
    stripe: int = 0
    stripes: int = 1


@dataclass(frozen=True, kw_only=True)
class SendWeights:
    """To a trainer rank: send your shards of `version` over `link`, opening it if new.

    To a replica that keeps a copy: send the shards of `link.trainer_rank` in its place.

    Attributes:
        base: version that the receiver holds a copy of, onto which changes may be sent;
            None: send everything.
    """

    version: int
    link: Link
    base: int | None = None


@dataclass(frozen=True, kw_only=True)
class StageWeights:
    """To a replica or a relay: have this version ready in the background, then report.

    Attributes:
        manifest: the version.
        links: every stripe of every trainer rank, in rank order; open those whose prefix is new.
            Empty: the relay of the replica's node holds the version, checked.
        base: version that changes may be sent onto; the receiver refuses if its copy is of
            another one.
        place: where the relay holds the version.
        in_place: nobody reads the relay's copy, so the version may be written over it.
        attempt: unique where there are no links: an order that is delivered again is not carried
            out again, but one to map the same version of the relay again is.
    """

    manifest: WeightManifest
    links: tuple[Link, ...] = ()
    base: int | None = None
    place: Place | None = None
    in_place: bool = False
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class CommitWeights:
    """To a replica: make the staged version the served one, then report."""

    version: int


@dataclass(frozen=True, kw_only=True)
class DropLinks:
    """To any member: forget links whose prefix starts with `prefix`, and what came over them.

    Attributes:
        replica_id: the replica whose update they were for.
        prefix: see `Link`.
    """

    replica_id: str
    prefix: str


@dataclass(frozen=True, kw_only=True)
class DistrustWeights:
    """To a replica: what it serves as `version` is not what the trainer sent.

    It no longer says that it holds the version, so that no bus, not even one that has just
    restarted, takes it to be in service before everything was sent again.
    """

    version: int


Order = SendWeights | StageWeights | CommitWeights | DistrustWeights | DropLinks | ControlReplica


@dataclass(frozen=True, kw_only=True)
class Orders:
    """Answer to a long poll.

    Attributes:
        known: False when the bus does not know the member: it must register again.
        last: number of the last order in `orders`; acknowledged by the next poll.
        orders: in the order in which they must be carried out; may be empty.
        wanted_replicas: see `WeightBus.want_replicas`; None where no run reported it lately.
    """

    known: bool
    last: int
    orders: tuple[Order, ...]
    wanted_replicas: int | None = None


class Phase(StrEnum):
    """Which part of an update a report is about."""

    SEND = "send"
    STAGE = "stage"
    COMMIT = "commit"
    CANARY = "canary"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A member says how an order ended.

    Attributes:
        member_id: the reporting member.
        replica_id: the replica whose update it is about.
        phase: which part ended.
        version: policy version.
        error: None on success, else what went wrong.
        seconds: how long the phase took.
        paused_s: for a commit, how long generation stood still.
        sent_bytes: for a send, payload bytes.
        canary_logprobs: for a canary, the replica's scores; None if the engine gave no
            answer (`error` says why).
        canary_unmoved: for a canary, every logprob is bit for bit that of the version
            before, although the weights are not.
        not_as_sent: for a canary, which weights were read back otherwise than they were sent.
        prefix: link prefix the phase used, empty for a commit.
        place: for a relay's stage, where the version lies.
    """

    member_id: str
    replica_id: str
    phase: Phase
    version: int
    error: str | None
    seconds: float
    paused_s: float = 0.0
    sent_bytes: int = 0
    canary_logprobs: CanaryLogprobs | None = None
    canary_unmoved: bool = False
    not_as_sent: str | None = None
    prefix: str = ""
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rollout server in the member table.

    Attributes:
        leased: the bus's word that it may be given work now.
        committed_version: version it serves, None before its first commit.
        last_error: why it was last suspected or failed, empty if never.
        trained_from: `WeightManifest.model` of the version that it serves; empty where the bus
            does not know it, as after a restart.
        node_id: see `ReplicaHello`.
        devices: see `ReplicaHello`.
        aliases: see `ReplicaHello`.
        deterministic: see `ReplicaHello`.
    """

    replica_id: str
    address: str
    state: ReplicaState
    committed_version: int | None
    leased: bool
    model: str
    max_model_len: int
    pid: int
    last_error: str = ""
    trained_from: str = ""
    node_id: str = ""
    devices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    deterministic: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Those of its model."""
        return (self.model, *self.aliases)

    def serves(self, model: str | None) -> bool:
        """Whether it has a model of this name; None: any."""
        return model is None or model in self.names


@dataclass(frozen=True, kw_only=True)
class MemberTable:
    """Members with their state and version.

    Attributes:
        bus_id: incarnation of the bus; another one has forgotten what was published.
        revision: grows with every change.
        newest_version: highest version ever published, None before the first.
        lease_s: how long the leases in this table hold without news from the bus, seconds.
        trainer_ready: all ranks of a trainer group are registered.
        pushes: version commits on replicas so far, summed over replicas.
    """

    bus_id: str
    revision: int
    newest_version: int | None
    lease_s: float
    members: tuple[Member, ...]
    trainer_ready: bool
    pushes: int

    @property
    def leased(self) -> tuple[Member, ...]:
        """Members that may be given work."""
        return tuple(member for member in self.members if member.leased)


class WeightBus(Protocol):
    """The bus's interface; every method is short but the two long polls."""

    async def register_replica(self, hello: ReplicaHello) -> None:
        """Enter a replica, or renew what is known of it. It is caught up before a lease."""

    async def register_relay(self, hello: RelayHello) -> None:
        """Enter a node's relay, or renew what is known of it."""

    async def register_trainer(self, hello: TrainerHello) -> None:
        """Enter a trainer rank."""

    async def leave(self, member_id: str) -> None:
        """Forget a member that goes of its own will."""

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        """Orders after number `acknowledged`, waiting at most `wait_s`; also a heartbeat."""

    async def report(self, report: Report) -> None:
        """Take a member's report; one that is no longer awaited is dropped and counted."""

    async def publish(self, manifest: WeightManifest, group: str | None = None) -> None:
        """Make a version the newest: its snapshot exists on every trainer rank.

        Raises:
            InvalidInput: the version is not above the newest, or is of another model than
                the one that is served, or `group`, the publisher's, is not the trainer's any
                more.
        """

    async def publish_canary(self, version: int, logprobs: CanaryLogprobs) -> None:
        """Report the trainer's own scores of the canary of a published version."""

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """The table as soon as it is newer than `revision`, or as it is after `wait_s`."""

    async def control(
        self, replica_id: str, action: str, level: int | None, wait_s: float
    ) -> ControlOutcome:
        """Have a replica do what an operator asks (`ControlAction`), and wait until it has.

        From the order to pause or sleep until that to resume or wake up it has no lease;
        after sleep of level 2 not before a whole version was committed again.

        Raises:
            InvalidInput: no such replica, action or level, or the replica cannot do that.
            ControlFailed: it failed, or did not report within `wait_s`.
        """

    async def report_control(self, outcome: ControlOutcome) -> None:
        """Take a replica's report of such an order."""

    async def lend_devices(self, borrower: str, wait_s: float) -> tuple[str, ...]:
        """Have replicas that share devices with the trainer free them, until `return_devices`.

        Replicas that register meanwhile free theirs, too. The loan ends by itself `LOAN_S` after
        the last call, so a borrower repeats it.

        Args:
            borrower: name of the rank group; the newest has the loan.
            wait_s: longest wait.

        Returns:
            Replicas that have not freed their devices yet; empty: all have.
        """

    async def return_devices(self, borrower: str) -> None:
        """End the loan of this borrower; the replicas take their devices and catch up."""

    async def versions(self) -> tuple[VersionRecord, ...]:
        """Records of the newest versions, oldest first; a bounded number.

        A restarted bus begins with the versions that its members report again.
        """

    async def bound_lag(self, max_lag: int | None) -> None:
        """Lease only replicas at most `max_lag` versions behind the newest; None: any."""

    async def want_replicas(self, replicas: int) -> None:
        """Report how many replicas a run has work for; the replicas pass it to Serve.

        It is forgotten after a minute, since a run may end without a word.

        Raises:
            InvalidInput: less than one.
        """
