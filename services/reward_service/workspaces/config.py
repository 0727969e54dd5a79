"""The configuration of workspaces and the only place of its defaults."""

from typing import Literal

from pydantic import Field

from services.access.config import AccessConfig
from services.observability.tracing import TracingConfig
from services.protocol.strict import StrictModel
from services.reward_service.config import cores_here


class WorkspacesConfig(StrictModel):
    """How many workspaces a replica holds, and how they are held.

    Attributes:
        num_cpus: Ray CPUs of a replica; a claim in scheduling, not a limit.
        node_resource: custom Ray resource that a node must have for replicas to be put there.
        replicas: Serve replicas.
        tracing: a collector for spans, None for none (docs/tracing.md).
        access: who may use workspaces. One belongs to the key that opened it.
        host: address on which replicas take each other's requests; "" is the node's own.
        max_request_mb: longest HTTP body, MiB.
        request_body_s: seconds in which an HTTP body must have arrived.
        require_tier: `A` refuses to start without namespaces (bubblewrap); `B` is content with
            Landlock, seccomp and limits. As an ordinary user tier B needs Linux 6.12.
        shared_user: start in tier B as an ordinary user as well. Programs then run as the service's
            own user and can change the modes and times of all its files, which Landlock does not
            govern; they can write none of them.
        use_bubblewrap: try namespaces at all.
        start_s: seconds a jail may take to start.
        python: the interpreter for `python`, such as a virtual environment's; None for the
            service's own, without its packages.
        readable: folders of the host that programs may read and execute files of, besides `/usr`.
        max_open: workspaces of a replica that may be open.
        per_key: workspaces of one API key that may be open in a replica.
        starts_per_s: workspaces that a replica starts each second, over time.
        starts_at_once: how many of them may start without a pause.
        start_wait_s: seconds that one may wait for its start; longer is refused.
        calls_at_a_time: calls that run at the same time in a replica; the others wait.
        queue_wait_s: seconds that a call may wait for its turn.
        max_memory_mb: largest `memory_mb` that a workspace may ask for, MiB.
        max_disk_mb: largest `disk_mb`, MiB of files.
        max_processes: largest `processes`, threads included.
        max_idle_s: largest `idle_s`, seconds without a call.
        max_total_s: largest `total_s`, seconds from its opening.
        grade_run_s: wall seconds that the tests of a workspace may take together, with the
            processor seconds of unpacking its files for each; those that are left then count as
            failed.
        grade_deadline_s: seconds from a request to grade to the score, waiting included; longer
            is an `infra_error`. Longer than `grade_run_s`, or a workspace could choose it.
        grades_at_a_time: workspaces that are graded at the same time in a replica.
        connect_s: seconds that a connection to another replica may take.
        network: addresses that workspaces may ask to reach through the proxy: `host:port`, or
            `*.host:port` for all names below a host. A private address may be reached only if a
            pattern names it by its number.
        network_never: addresses and networks, such as `203.0.113.0/24`, that no name may lead to:
            the public addresses of the cluster.
        network_connections: connections of a workspace at a time; more wait.
        network_mb: bytes that a workspace may move in its life, both ways, MiB.
        file_mb: largest file or archive that is written or read in one call, MiB.
        picture_mb: pictures of one cell, MiB.
        snapshot_mb: memory for snapshots, MiB.
        snapshot_s: a snapshot that was not used for so many seconds is dropped.
    """

    num_cpus: float = Field(default=0.1, ge=0)
    node_resource: str | None = Field(default=None, min_length=1)
    replicas: int = Field(default=1, ge=1)
    tracing: TracingConfig | None = None
    access: AccessConfig = AccessConfig()
    host: str = ""
    max_request_mb: int = Field(default=64, ge=1)
    request_body_s: float = Field(default=120.0, gt=0)
    require_tier: Literal["A", "B"] = "B"
    shared_user: bool = False
    use_bubblewrap: bool = True
    start_s: float = Field(default=60.0, gt=0)
    python: str | None = None
    readable: list[str] = Field(default_factory=list)
    max_open: int = Field(default=200, ge=1)
    per_key: int = Field(default=200, ge=1)
    starts_per_s: float = Field(default_factory=lambda: 8.0 * cores_here(), gt=0)
    starts_at_once: int = Field(default=64, ge=1)
    start_wait_s: float = Field(default=10.0, ge=0)
    calls_at_a_time: int = Field(default_factory=lambda: 4 * cores_here(), ge=1)
    queue_wait_s: float = Field(default=600.0, gt=0)
    max_memory_mb: int = Field(default=4096, ge=64)
    max_disk_mb: int = Field(default=4096, ge=1)
    max_processes: int = Field(default=512, ge=8)
    max_idle_s: float = Field(default=3600.0, gt=0)
    max_total_s: float = Field(default=86400.0, gt=0)
    grade_run_s: float = Field(default=300.0, gt=0)
    grade_deadline_s: float = Field(default=1800.0, gt=0)
    grades_at_a_time: int = Field(default_factory=lambda: 2 * cores_here(), ge=1)
    connect_s: float = Field(default=10.0, gt=0)
    network: list[str] = Field(default_factory=list)
    network_never: list[str] = Field(default_factory=list)
    network_connections: int = Field(default=16, ge=1)
    network_mb: int = Field(default=1024, ge=1)
    file_mb: int = Field(default=64, ge=1)
    picture_mb: int = Field(default=8, ge=1)
    snapshot_mb: int = Field(default=1024, ge=1)
    snapshot_s: float = Field(default=3600.0, gt=0)
