"""Configuration of the weight bus."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.observability.tracing import TracingConfig
from services.protocol.strict import StrictModel


class WeightBusConfig(StrictModel):
    """Deadlines of membership and of weight updates.

    Attributes:
        lease_s: how long the leases of a member table hold without news from the bus.
        heartbeat_timeout_s: silence after which a member is suspect and has no lease.
        dead_after_s: silence after which a member is dead and its update is given up.
        forget_after_s: silence after which a dead member leaves the table.
        poll_s: longest that the bus holds a member's poll open.
        link_timeout_s: deadline of every operation on a link.
        stage_timeout_s: deadline from the order to send to the replica's vote.
        commit_margin_s: time beyond a replica's own deadline for a commit in which its
            report must come.
        relays: one process on each node with replicas receives each version once, passes it on to
            the next node while it receives, and holds it for all engines of its node; False:
            every replica receives by itself.
        transport: how bytes reach a relay or a replica: "gloo" over TCP, "nccl" between GPUs of
            different machines (with `relays: false`, for a relay has no GPU), "shared_memory"
            within a node; "auto": shared memory where trainer rank and receiver can read each
            other's, else NCCL where both have a GPU, else TCP, and TCP after a failure.
        interfaces: network interfaces that links take in turn, on both ends; every node with a
            trainer rank or a rollout server has all of them, each in a subnet of its own. Empty:
            the address under which Ray knows the node.
        delta_anchor_every: send only what changed to relays, and to replicas that keep a copy, and
            everything with every version that this number divides; 0: always everything. It pays
            where the wire is slow: a thread compares about 1 GB a second to find the changes.
        commit: "rolling": each replica commits as soon as it has staged a version;
            "barrier": all in service commit together, after the slowest has staged.
        canary_max_gap: largest difference between a logprob of a replica and the trainer's,
            nats, before the replica loses its lease and is sent everything again; a 64th of it
            on average. None: 0.01 for weights in float32, 2 in float16, 10 in bfloat16 and for
            quantised engines. Once there are 8 good answers, an answer may not differ much more
            than those, either.
        retry_s: pause before the first retry of a failed update; doubles up to
            `retry_max_s`.
        retry_max_s: longest pause between retries.
        ledger_versions: versions that the bus remembers the fate of.
        tracing: a collector for spans, None for none (docs/tracing.md).
        num_cpus: CPUs that Ray reserves for the deployment that keeps the actor alive.
    """

    lease_s: float = Field(default=10.0, gt=0)
    heartbeat_timeout_s: float = Field(default=10.0, gt=0)
    dead_after_s: float = Field(default=20.0, gt=0)
    forget_after_s: float = Field(default=60.0, gt=0)
    poll_s: float = Field(default=2.0, gt=0)
    link_timeout_s: float = Field(default=20.0, gt=0)
    stage_timeout_s: float = Field(default=120.0, gt=0)
    commit_margin_s: float = Field(default=30.0, gt=0)
    relays: bool = True
    transport: Literal["auto", "gloo", "nccl", "shared_memory"] = "auto"
    interfaces: tuple[str, ...] = ()
    delta_anchor_every: int = Field(default=0, ge=0)
    commit: Literal["rolling", "barrier"] = "rolling"
    canary_max_gap: float | None = Field(default=None, gt=0)
    retry_s: float = Field(default=0.2, gt=0)
    retry_max_s: float = Field(default=5.0, gt=0)
    ledger_versions: int = Field(default=256, ge=1)
    tracing: TracingConfig | None = None
    num_cpus: float = Field(default=0.1, ge=0)

    @model_validator(mode="after")
    def _silence_has_an_order(self) -> Self:
        """A member that polls as it should must never be suspect, nor one suspect be forgotten."""
        order = ("poll_s", "heartbeat_timeout_s", "dead_after_s", "forget_after_s")
        poll, heartbeat, dead, forget = (getattr(self, name) for name in order)
        if not poll < heartbeat <= dead < forget:
            raise ValueError(
                "Use poll_s < heartbeat_timeout_s <= dead_after_s < forget_after_s; "
                f"these are {poll:g}, {heartbeat:g}, {dead:g} and {forget:g} s"
            )
        return self

    @model_validator(mode="after")
    def _links_can_be_made(self) -> Self:
        if self.transport == "nccl" and self.relays:
            raise ValueError(
                "transport: nccl passes bytes between GPUs, and relays hold versions in host "
                "memory; set relays: false too, or leave transport at auto"
            )
        if "" in self.interfaces or len(set(self.interfaces)) < len(self.interfaces):
            raise ValueError(f"interfaces: {list(self.interfaces)} must be different names")
        return self
