"""Configuration of the orchestrator service."""

from collections.abc import Iterator

from pydantic import Field

from services.access.config import AccessConfig
from services.http.api_key import key_in
from services.observability.tracing import TracingConfig
from services.protocol.strict import StrictModel
from services.retry import doubling


class TeacherConfig(StrictModel):
    """A model that run files may name as a teacher (`algorithm.distillation`).

    Attributes:
        url: of an OpenAI-compatible server, without a path, whose `/v1/completions` returns the
            logprobs of a prompt (`echo` with `logprobs`), as vLLM and the router do; with a
            `context` it needs vLLM's `/tokenize` too. Its model must have the policy's tokenizer.
        model: its served name.
        api_key_env: environment variable with its API key, None where it asks for none.
        concurrency: answers that it scores at a time.
        timeout_s: longest request about an answer, and how long failed ones are repeated, seconds;
            then the answer is left out.
    """

    url: str = Field(pattern=r"^https?://[^/]+$")
    model: str = Field(min_length=1)
    api_key_env: str | None = None
    concurrency: int = Field(default=32, ge=1)
    timeout_s: float = Field(default=300.0, gt=0)

    @property
    def key(self) -> str | None:
        """The API key, None for none.

        Raises:
            InvalidInput: `api_key_env` names a variable that is not set.
        """
        return key_in(self.api_key_env, field="orchestrator.teachers.api_key_env")


class OrchestratorConfig(StrictModel):
    """Settings of the orchestrator for all runs.

    Attributes:
        access: who may start, see and stop runs.
        tracing: a collector for spans, None for none (docs/tracing.md).
        num_cpus: processors Ray reserves for the service.
        node_resource: custom Ray resource that a node must have for the service to be put there.
        router_url: where the router answers, without a path.
        router_key_env: environment variable with the API key that is shown to the router, None
            where it asks for none.
        environments: whether a run file may name Python code, its `environment`, which then
            runs beside the orchestrator with its rights. Off, because every client that may
            start runs could run anything.
        tracker_addresses: whether a run file may say where a tracker's server is (`uri`,
            `base_url`), to which the orchestrator then shows its own keys for trackers. Off,
            because every client that may start runs could have them sent to its own server.
        teachers: models that run files may name as a teacher, by name.
        max_connections: rollouts at the router at a time, of groups or episodes; others wait.
        rollout_retries: further attempts at a sample group whose rollout failed.
        backoff_s: first pause before a peer that is not ready is asked again, seconds;
            doubled each time up to `backoff_max_s`.
        backoff_max_s: longest such pause, seconds.
        score_batch: trajectories sent to the reward service in one call, which returns when the
            slowest of them is graded.
        score_wait_s: how long the first trajectory of a call waits for company, seconds.
        score_concurrency: calls to the reward service at a time; None: as many as hold four
            answers for each of its sandboxes, at least 4.
        score_queue: trajectories that may wait to be scored.
        score_timeout_s: deadline for a score, retries included, seconds; then it counts as an
            infrastructure failure.
        evaluation_concurrency: held-out tasks rolled out at a time, of all sets together.
        trainer_timeout_s: how long the trainer may be gone or show no work, seconds; loads, train
            steps and checkpoints that make progress may take any time.
        replicas_timeout_s: how long rollout servers may take to hold a version, seconds.
        recoveries_in_row: how often in a row a run may bring its trainer back, or be resumed after
            its orchestrator died, without a train step that was not reached before; then it fails,
            or is not resumed. As many starts of the trainer may fail.
        failures_in_row: sample groups in a row that may fail before a run fails, in batches.
        no_signal_batches: a run ends once so many batches' worth of sample groups in a row had
            equal rewards in each group, because there is nothing left to learn. It fails if none
            of those rewards was above 0, else it finishes.
        disk_full_timeout_s: how long a run waits while its disk is full before it fails, seconds.
        stop_timeout_s: how long a stop waits for the train step in progress, seconds.
        sample_trajectories: sample groups of each train step of which one trajectory is kept for
            people to read; after a whole batch of groups without differing rewards, as many of
            each further such batch.
    """

    access: AccessConfig = AccessConfig()
    tracing: TracingConfig | None = None
    num_cpus: float = Field(default=0.1, ge=0)
    node_resource: str | None = Field(default=None, min_length=1)
    router_url: str = Field(default="http://127.0.0.1:8000", pattern=r"^https?://[^/]+$")
    router_key_env: str | None = None
    environments: bool = False
    tracker_addresses: bool = False
    teachers: dict[str, TeacherConfig] = Field(default={})
    max_connections: int = Field(default=256, ge=1)
    rollout_retries: int = Field(default=2, ge=0)
    backoff_s: float = Field(default=0.1, gt=0)
    backoff_max_s: float = Field(default=5.0, gt=0)
    score_batch: int = Field(default=16, ge=1)
    score_wait_s: float = Field(default=0.005, ge=0)
    score_concurrency: int | None = Field(default=None, ge=1)
    score_queue: int = Field(default=65536, ge=1)
    score_timeout_s: float = Field(default=1000.0, gt=0)
    evaluation_concurrency: int = Field(default=64, ge=1)
    trainer_timeout_s: float = Field(default=300.0, gt=0)
    replicas_timeout_s: float = Field(default=300.0, gt=0)
    recoveries_in_row: int = Field(default=3, ge=1)
    failures_in_row: int = Field(default=4, ge=1)
    no_signal_batches: int = Field(default=20, ge=1)
    disk_full_timeout_s: float = Field(default=3600.0, gt=0)
    stop_timeout_s: float = Field(default=60.0, gt=0)
    sample_trajectories: int = Field(default=2, ge=0)

    @property
    def pauses(self) -> Iterator[float]:
        """Pauses between calls of a peer that is not ready, seconds."""
        return doubling(self.backoff_s, self.backoff_max_s)

    @property
    def router_key(self) -> str | None:
        """The API key for the router, None for none.

        Raises:
            InvalidInput: `router_key_env` names a variable that is not set.
        """
        return key_in(self.router_key_env, field="orchestrator.router_key_env")
