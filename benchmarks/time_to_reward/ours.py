"""Millrace's side of `time_to_reward`: deploy/laptop.yaml, brought up as the demo does."""

import time
from bisect import bisect_left
from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.processes import tree_cpu_s
from benchmarks.time_to_reward.goal import Goal, Side
from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.demo.demo import SERVICES_S, DemoOptions
from millrace_tools.run.step_log import Step, StepLog
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus

_POLL_S = 0.5
_GRACE_S = 30.0


@dataclass
class _Watch:
    """Observations of a run.

    Attributes:
        cpu: elapsed seconds of the run, and CPU seconds of all processes until then.
        rates: by train steps done: pass rate, and the newest policy version that answered.
    """

    steps: list[Step] = field(default_factory=list)
    cpu: list[tuple[float, float]] = field(default_factory=list)
    rates: dict[int, tuple[float, int]] = field(default_factory=dict)
    began_s: float | None = None

    def note(self, status: RunStatus, fresh: list[Step]) -> None:
        """Take in where the run is now."""
        if self.began_s is None and status.state == RunState.TRAINING:
            self.began_s = status.elapsed_s
        self.steps += fresh
        self.cpu.append((status.elapsed_s, tree_cpu_s()))
        for one in status.evaluations:
            if one.pass_rate is not None and one.newest_version is not None:
                self.rates[one.step] = one.pass_rate, one.newest_version

    def reached(self, goal: Goal) -> Step | None:
        """The train step that made the newest weights of an evaluation that was good enough."""
        for rate, version in self.rates.values():
            if rate >= goal.pass_rate:
                for step in self.steps:
                    if step.policy_version is not None and step.policy_version >= version:
                        return step
        return None

    def over(self, goal: Goal) -> bool:
        """The limit on seconds is passed."""
        return self.began_s is not None and self.cpu[-1][0] - self.began_s > goal.seconds

    def cpu_until(self, elapsed_s: float) -> float:
        """CPU seconds at the first look at or after a time."""
        place = bisect_left(self.cpu, (elapsed_s, 0.0))
        return self.cpu[min(place, len(self.cpu) - 1)][1]


def reach(goal: Goal, run: RunConfig, port: int, console: Console) -> Side:
    """Start everything, train to the goal and shut everything down."""
    options = DemoOptions(seed=run.seed, port=port, steps=goal.steps)
    evaluation = run.evaluation.model_copy(update={"every": goal.every})
    run = run.model_copy(update={"evaluation": evaluation})
    began, cpu_before = time.monotonic(), tree_cpu_s()
    with deployed(options, console):
        asked_s = time.monotonic() - began
        with RunsClient(options.url) as client:
            watch = _watched(client, run, goal)
    return _side(goal, watch, asked_s=asked_s, cpu_before=cpu_before)


def _watched(client: RunsClient, run: RunConfig, goal: Goal) -> _Watch:
    watch = _Watch()
    status = client.start(run)
    log = StepLog(status.run_dir)
    deadline = time.monotonic() + SERVICES_S + goal.seconds + _GRACE_S
    while True:
        watch.note(status, log.new(status))
        ended = status.state in ENDED
        if ended or watch.reached(goal) or watch.over(goal) or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
        status = client.status(status.run_id)
    if not ended:
        client.control(status.run_id, "stop")
    if watch.began_s is None or not watch.steps:
        raise RuntimeError(f"the run never trained: {status.state}, {status.detail}")
    return watch


def _side(goal: Goal, watch: _Watch, *, asked_s: float, cpu_before: float) -> Side:
    assert watch.began_s is not None, "checked where it was watched"
    step = watch.reached(goal)
    last = step or watch.steps[-1]
    cpu_at_start = watch.cpu_until(watch.began_s)
    return Side(
        reached=step is not None,
        steps=last.number,
        train_s=last.elapsed_s - watch.began_s,
        train_cpu_s=watch.cpu_until(last.elapsed_s) - cpu_at_start,
        # With the evaluation before the first train step, which TRL is not charged.
        startup_s=asked_s + watch.began_s,
        startup_cpu_s=cpu_at_start - cpu_before,
        rates=[(number, rate) for number, (rate, _) in sorted(watch.rates.items())],
    )
