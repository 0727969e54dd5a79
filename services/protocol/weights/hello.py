"""Messages with which rollout servers and trainer ranks register at the weight bus."""

from dataclasses import dataclass

from services.protocol.weights.place import Place
from services.protocol.weights.replica_control import Hold
from services.protocol.weights.weights import WeightManifest


@dataclass(frozen=True, kw_only=True)
class ReplicaHello:
    """A rollout server introduces itself.

    Attributes:
        replica_id: unique name; a restarted server has a new one.
        address: `http://host:port` of its own OpenAI-compatible server.
        committed_version: version it serves now, None while it has no real weights.
        model: served model name.
        max_model_len: longest prompt plus response in tokens.
        pid: process id of the replica on its node.
        commit_timeout_s: longest from an order to commit to the report of how it ended.
        keeps_copy: it keeps the bytes of what it serves in host memory: the base of changes,
            and what a late joiner can be given.
        copy: manifest of that copy, None while there is none.
        memory_domain: see `TrainerHello`.
        node_id: Ray's id of its node, on which the bus starts a relay; empty: nowhere.
        has_gpu: see `TrainerHello`.
        held: why it may not work.
        devices: names on its node of the devices that it shares with ranks of the trainer, one
            for each worker of its engine; empty: it shares none.
        interfaces: see `TrainerHello`.
        aliases: more names of the model that it serves.
        quantised: its engine computes with weights of 8 bits, which it makes from those sent.
        deterministic: its answers do not depend on what is computed beside them.
    """

    replica_id: str
    address: str
    committed_version: int | None
    model: str
    max_model_len: int
    pid: int
    commit_timeout_s: float
    keeps_copy: bool = False
    copy: WeightManifest | None = None
    memory_domain: str = ""
    node_id: str = ""
    has_gpu: bool = False
    held: Hold = Hold.NONE
    devices: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    quantised: bool = False
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True)
class RelayHello:
    """A node's relay introduces itself.

    Attributes:
        relay_id: unique name; a restarted relay has a new one.
        node_id: Ray's id of its node.
        memory_domain: see `TrainerHello`.
        copy: manifest of the version that it holds whole, None while there is none.
        place: where the engines of the node find that version's bytes.
        interfaces: see `TrainerHello`.
    """

    relay_id: str
    node_id: str
    memory_domain: str
    copy: WeightManifest | None = None
    place: Place | None = None
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainerHello:
    """One trainer rank introduces itself.

    Attributes:
        member_id: unique name of this rank in this incarnation of the group.
        group: name of the incarnation; ranks of an older group are forgotten when all
            ranks of a newer one have registered.
        rank: 0-based.
        world_size: ranks of the group that send; where a trainer holds several copies of
            the model, those of the first copy.
        memory_domain: processes with the same name here can read each other's memory; empty:
            no process can.
        has_gpu: the process owns a GPU.
        interfaces: names of the node's network interfaces that have an address; empty: not known.
    """

    member_id: str
    group: str
    rank: int
    world_size: int
    memory_domain: str = ""
    has_gpu: bool = False
    interfaces: tuple[str, ...] = ()
