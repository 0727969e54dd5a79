"""Records of the versions that the weight bus delivered."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VersionOutcome:
    """The outcome of one attempt to deliver a version to a replica.

    Attributes:
        replica_id: the replica.
        at: when the bus heard of it, seconds since 1970.
        error: None: the replica committed it, or reported to a restarted bus that it serves it;
            else the phase that failed and why.
        seconds: of an attempt that was seen to end in a commit, from its first order.
        stage_s: how long the replica took to receive and verify, as it reported.
        commit_s: how long it took to commit.
        paused_s: how long generation stood still for it.
    """

    replica_id: str
    at: float
    error: str | None
    seconds: float | None = None
    stage_s: float | None = None
    commit_s: float | None = None
    paused_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class VersionRecord:
    """One version.

    Attributes:
        version: policy version.
        train_step: train step whose result it is; None: a replica serves it, but its
            manifest has not been published again since the bus restarted.
        digest: see `WeightManifest.digest`; empty where `train_step` is None.
        model: as in its manifest; empty where `train_step` is None.
        base: the newest version before it, onto which its changes are sent; None: none was
            known.
        published_at: seconds since 1970; None: before this life of the bus.
        commits: replicas that committed it or were found serving it.
        failures: attempts that failed.
        outcomes: the newest of both, oldest first.
    """

    version: int
    train_step: int | None
    digest: str
    model: str
    base: int | None
    published_at: float | None
    commits: int
    failures: int
    outcomes: tuple[VersionOutcome, ...]
