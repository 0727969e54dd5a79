"""The progress of a run, as `GET /v1/runs/{run_id}` shows it."""

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from services.orchestrator.core.idle_times import IdleTimes
from services.orchestrator.core.length_bias import LengthBias
from services.orchestrator.failures import Failures
from services.protocol.run.evaluation import DEFAULT_SET, Evaluation
from services.protocol.run.orchestrator import LedgerCounts, RunState, RunStatus, RunSummary

_STEPS_TIMED = 20


@dataclass(kw_only=True)
class Progress:
    """State and figures of a run; each field as in `RunStatus`.

    Attributes:
        tokens_sampled: as the ledger knew at the newest look: it adds an attempt when that ends.
        tokens_evaluated: of all evaluations.
        tokens_arrived: of both, since this process runs: what the rate is taken of.
        heldout_set: the held-out set that `heldout` is of.
        evaluations: the newest of each held-out set.
        moved_at: when a rollout or a score last made progress, on the monotonic clock.
        saved_step: newest train step of which there is a checkpoint.
        failures: sample groups that failed.
        shares_devices: the trainer works in turn with the rollout servers.
        recoveries: times the trainer was brought back.
        idle: what trainer and rollout waited for.
        lengths: of sampled and of consumed answers.
        paused: no sample group is admitted and no train step begins.
        disk_full: what the run waits for on a full disk, as long as it does, else empty; it
            begins as little as when it is paused.
        elapsed_before_s: wall time spent on the run before it was resumed, seconds.
    """

    run_id: str
    run_dir: str
    steps: int
    state: RunState = RunState.STARTING
    step: int = 0
    saved_step: int = 0
    reward: float | None = None
    heldout_set: str = DEFAULT_SET
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    heldout_problem: str | None = None
    policy_version: int | None = None
    staleness: float | None = None
    tokens_sampled: int = 0
    tokens_evaluated: int = 0
    tokens_arrived: int = 0
    moved_at: float = 0.0
    tokens_per_second: float = 0.0
    shares_devices: bool = False
    recoveries: int = 0
    idle: IdleTimes = field(init=False)
    lengths: LengthBias = field(default_factory=lambda: LengthBias(settled_after=0))
    paused: bool = False
    disk_full: str = ""
    failures: Failures = field(default_factory=Failures)
    detail: str = "starting"
    summary: RunSummary | None = None
    elapsed_before_s: float = 0.0
    _started: float = field(default_factory=lambda: time.monotonic())
    _ended: float | None = None
    _rate_from: tuple[float, int] | None = None
    _stepped: deque[float] = field(default_factory=partial(deque, maxlen=_STEPS_TIMED + 1))

    def __post_init__(self) -> None:
        """Idle times are those of this run."""
        self.idle = IdleTimes(self.run_id)

    @property
    def active(self) -> bool:
        """The run still uses the cluster."""
        return self.state not in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)

    @property
    def held(self) -> bool:
        """Nothing new may begin."""
        return self.paused or bool(self.disk_full)

    @property
    def trainer_version(self) -> int:
        """The trainer's policy version, -1 before its first."""
        return -1 if self.policy_version is None else self.policy_version

    @property
    def heldout(self) -> float | None:
        """Newest pass rate of the first held-out set."""
        newest = self.evaluations.get(self.heldout_set)
        return newest.pass_rate if newest else None

    @property
    def elapsed_s(self) -> float:
        """Wall time spent on the run so far, seconds."""
        return self.elapsed_before_s + (self._ended or time.monotonic()) - self._started

    def enter(self, state: RunState, detail: str) -> None:
        """Enter a state; `detail` says what the run does in it."""
        self.state, self.detail = state, detail
        if not self.active:
            self._ended = time.monotonic()

    def measure_rate(self) -> None:
        """Set `tokens_per_second` to the rate since the last call, which was a step ago."""
        now = time.monotonic()
        self._stepped.append(now)
        if self._rate_from is not None and now > self._rate_from[0]:
            then, tokens = self._rate_from
            self.tokens_per_second = (self.tokens_arrived - tokens) / (now - then)
        self._rate_from = (now, self.tokens_arrived)

    @property
    def seconds_left(self) -> float | None:
        """Until the last train step at the pace of the newest ones; None before the second."""
        if len(self._stepped) < 2 or not self.active:
            return None
        took = (self._stepped[-1] - self._stepped[0]) / (len(self._stepped) - 1)
        return took * (self.steps - self.step)

    def status(self, *, ledger: LedgerCounts, live_replicas: int) -> RunStatus:
        """The answer to a client."""
        state, detail = self.state, self.detail
        if self.disk_full and self.active:
            state, detail = RunState.DISK_FULL, self.disk_full
        elif self.paused and state is RunState.TRAINING:
            state = RunState.PAUSED
        return RunStatus(
            run_id=self.run_id,
            state=state,
            run_dir=self.run_dir,
            step=self.step,
            steps=self.steps,
            reward=_rounded(self.reward),
            heldout_pass_rate=_rounded(self.heldout),
            heldout_problem=self.heldout_problem,
            evaluations=list(self.evaluations.values()),
            policy_version=self.policy_version,
            staleness=self.staleness,
            tokens_sampled=self.tokens_sampled,
            tokens_evaluated=self.tokens_evaluated,
            tokens_per_second=round(self.tokens_per_second, 1),
            live_replicas=live_replicas,
            idle=self.idle.shares,
            length_bias=_rounded(self.lengths.running),
            ledger=ledger,
            failures=dict(self.failures.counts),
            failure_example=self.failures.example,
            elapsed_s=round(self.elapsed_s, 1),
            seconds_left=None if self.seconds_left is None else round(self.seconds_left, 1),
            detail=detail,
            summary=self.summary,
        )


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)
