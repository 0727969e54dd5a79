"""The reward service's configuration and the only place of its defaults."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from services.access.config import AccessConfig
from services.observability.tracing import TracingConfig
from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel

_MODULE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_URL = r"^https?://"
_JUDGE = r"^[a-z][a-z0-9_-]{0,39}$"
_PLACE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


def cores_here() -> int:
    """Cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


class JudgeConfig(StrictModel):
    """A model that tasks may name as a judge (grader `judge`).

    Attributes:
        url: of an OpenAI-compatible API, with the path before `/chat/completions`, such as
            `https://api.example.com/v1`.
        model: its name there.
        api_key_env: environment variable with its API key, None where it asks for none.
        structured: it takes a `response_format` with a JSON schema; without, the score is read
            from the last line of a text.
        concurrency: answers of a replica that it is asked about at a time.
        timeout_s: deadline for one answer, attempts included, once it has its place, seconds.
        attempts: replies without a usable verdict, for one answer, at most. A judge that is busy
            or away is asked again until the deadline.
        max_tokens: longest verdict, thoughts included.
        longest_answer: characters of the longest answer that it is shown; a longer one has the
            reward 0, so keep it well below the model's context.
    """

    url: str = Field(pattern=r"^https?://[^?#]*[^/?#]$")
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(default=None, min_length=1)
    structured: bool = True
    concurrency: int = Field(default=16, ge=1)
    timeout_s: float = Field(default=120.0, gt=0, le=600)
    attempts: int = Field(default=3, ge=1, le=10)
    max_tokens: int = Field(default=1024, ge=16)
    longest_answer: int = Field(default=32_000, ge=1)


class RewardServiceConfig(StrictModel):
    """How answers are graded and how strictly they are held.

    Attributes:
        num_cpus: Ray CPUs of a replica; a claim in scheduling, not a limit.
        node_resource: custom Ray resource that a node must have for replicas to be put there.
        replicas: Serve replicas; with `max_replicas` the fewest.
        max_replicas: most replicas; more than `replicas` are started while estimated
            CPU-seconds queue up. None for a fixed number.
        tracing: a collector for spans, None for none (docs/tracing.md).
        access: keys for the HTTP API, which is served where the application has a route; None:
            there is no HTTP API, only the other services' way in.
        max_request_mb: longest HTTP body, MiB.
        request_body_s: seconds in which an HTTP body must have arrived.
        test_set_mb: memory for test sets, MiB of JSON.
        test_set_dir: folder, shared by all replicas, in which test sets are kept as well.
            Without it several replicas keep them in `~/.cache/millrace/test-sets`, which those
            on other machines do not see.
        slots: sandboxes that run at the same time in a replica. More than it has cores
            would make verdicts depend on load and is refused where the replica starts.
        require_tier: `A` refuses to start without namespaces (bubblewrap); `B` is content
            with Landlock, seccomp and limits, which ordinary containers allow.
        use_bubblewrap: try namespaces at all.
        queue_cpu_s: estimated CPU-seconds of work that may wait for a slot. Beyond it HTTP
            clients are told to come back, and callers in the cluster are held back.
        answer_run_s: wall seconds that an answer's own processes may take for all its tests, the
            checkers and tests that look at it included; longer is `time_limit`, and the tests
            that are left count as failed. Waiting for a core is no part of it.
        answer_deadline_s: seconds from an answer's arrival to its score, waiting included;
            longer is an `infra_error` of this answer alone. Longer than `queue_wait_s` and
            `answer_run_s` together, or an answer could choose it. Keep it below the deadline of
            the callers, or one slow answer costs them all scores of its call.
        queue_wait_s: seconds an answer may wait for a core; longer is an `infra_error`.
        cache_mb: memory for verdicts that are remembered, MiB.
        compile_cpu_s: processor seconds of one compilation.
        compile_memory_mb: address space of each process of the compiler, MiB.
        compile_output_mb: largest program, MiB.
        program_cache_mb: memory for compiled programs, MiB.
        toolchain_dir: folder for precompiled headers, to be shared by services of one user;
            without it each service has a temporary one.
        header_cache_dir: folder of this user's, closed to others, in which precompiled headers
            and compiled programs are kept for other services; None keeps none.
        kept_programs_mb: programs in that folder, MiB.
        slot_start_s: seconds a sandbox may take to start.
        failures_until_unhealthy: consecutive answers that no sandbox could be had for.
        graders: users' own Python graders, `module:function` by name.
        grader_modules: modules whose graders register themselves with `@grader`.
        http_graders: users' own HTTP endpoints, URL by name.
        judges: models that score answers by a rubric, by name.
        judge_cache_dir: folder in which their scores are kept for later runs; None keeps them in
            memory alone (`cache_mb`). Replicas of one machine share it.
        judge_cache_scores: scores kept there, about 150 bytes each; the oldest go first.
        user_grader_processes: calls of users' Python graders at a time; each takes a core.
    """

    num_cpus: float = Field(default=0.1, ge=0)
    node_resource: str | None = Field(default=None, min_length=1)
    replicas: int = Field(default=1, ge=1)
    max_replicas: int | None = Field(default=None, ge=1)
    tracing: TracingConfig | None = None
    access: AccessConfig | None = None
    max_request_mb: int = Field(default=64, ge=1)
    request_body_s: float = Field(default=120.0, gt=0)
    test_set_mb: int = Field(default=1024, ge=1)
    test_set_dir: str | None = None
    slots: int = Field(default_factory=cores_here, ge=1)
    require_tier: Literal["A", "B"] = "B"
    use_bubblewrap: bool = True
    queue_cpu_s: float = Field(default=3600.0, gt=0)
    answer_run_s: float = Field(default=120.0, gt=0)
    answer_deadline_s: float = Field(default=900.0, gt=0)
    queue_wait_s: float = Field(default=600.0, gt=0)
    cache_mb: int = Field(default=64, ge=1)
    compile_cpu_s: int = Field(default=10, ge=1)
    compile_memory_mb: int = Field(default=2048, ge=256)
    compile_output_mb: int = Field(default=32, ge=1)
    program_cache_mb: int = Field(default=512, ge=1)
    toolchain_dir: str | None = None
    header_cache_dir: str | None = None
    kept_programs_mb: int = Field(default=1024, ge=1)
    slot_start_s: float = Field(default=60.0, gt=0)
    failures_until_unhealthy: int = Field(default=20, ge=1)
    graders: dict[str, Annotated[str, Field(pattern=_PLACE)]] = Field(default_factory=dict)
    grader_modules: list[Annotated[str, Field(pattern=_MODULE)]] = Field(default_factory=list)
    user_grader_processes: int = Field(default=4, ge=1)
    http_graders: dict[str, Annotated[str, Field(pattern=_URL)]] = Field(default_factory=dict)
    judges: dict[Annotated[str, Field(pattern=_JUDGE)], JudgeConfig] = Field(default_factory=dict)
    judge_cache_dir: str | None = None
    judge_cache_scores: int = Field(default=1_000_000, ge=1)

    @property
    def test_set_folder(self) -> str | None:
        """Where test sets are kept beside memory; None for one replica, which needs no place."""
        if self.test_set_dir is None and max(self.replicas, self.max_replicas or 0) > 1:
            return str(Path.home() / ".cache" / "millrace" / "test-sets")
        return self.test_set_dir

    def check_cores(self) -> None:
        """Refuse more slots than this machine has cores; the file may be read on another.

        Raises:
            InvalidInput: naming both.
        """
        if self.slots > (cores := cores_here()):
            fix = f"This replica may use {cores} cores: give at most as many slots, or none."
            raise InvalidInput("slots", self.slots, fix)
