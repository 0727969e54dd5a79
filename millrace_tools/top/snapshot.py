"""The state of a deployment at one time: the screen draws it, `top` prints it as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunStatus


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One rollout server.

    Attributes:
        version: policy version it serves, None before its first.
        in_flight: sequences on it, as the router counts them; None: not known.
        waiting: sequences in its engine's own queue; None: not known.
        kv_usage: share of its KV cache in use; None: not known.
        error: why it was last suspected or failed.
    """

    replica_id: str
    state: str
    version: int | None
    leased: bool
    in_flight: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Push:
    """One of the newest weight versions.

    Attributes:
        age_s: seconds since it was published; None: before the bus was restarted.
        took_s: from publishing to the newest commit; None: no replica has committed it.
        commits: replicas that committed it.
        failures: attempts that failed.
        error: of the newest failed attempt.
    """

    version: int
    train_step: int | None
    age_s: float | None
    took_s: float | None
    commits: int
    failures: int
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """The reward service, all replicas together.

    Attributes:
        queue: pieces of work that wait for a core.
        queue_age_s: how long the oldest has waited.
        slots_busy: processor seconds of answers in a second: slots at work.
        verdicts: answers graded in a second, by verdict; empty at the first look.
    """

    queue: int
    queue_age_s: float
    slots_busy: float | None
    verdicts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All sources at one time.

    Attributes:
        at: seconds since 1970.
        newest_version: highest ever published.
        pushes: newest last.
        absent: sources that did not answer, and why.
    """

    at: float
    url: str
    runs: Sequence[RunStatus] = ()
    load: RouterLoad | None = None
    newest_version: int | None = None
    replicas: Sequence[Replica] = ()
    pushes: Sequence[Push] = ()
    rewards: Rewards | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
