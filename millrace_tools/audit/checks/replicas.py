"""Replicas and cores that keep a given GPU trainer busy, by the simulation of schedules."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

from millrace_tools.audit.checks.asked import Asked
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.simulation.hardware import Hardware, Setup, Work
from millrace_tools.simulation.oracle import BLIND, Oracle
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.schedule import SCHEDULE_PRESETS, ScheduleConfig

REPLICAS = "operations.replicas"
_QUESTION = "How many replicas and cores keep the given trainer busy?"
_PUSH = 0.05
"""Time of a push, as a share of that of a train step."""
_STEPS, _WORK, _MOST = 12, 20_000, 4096
"""Train steps of a simulation, answers that it samples at most, and replicas that are tried."""
_BUSY, _NEAR = 0.95, 0.97
"""Share of the most that the trainer can work, which the least replicas reach; share of its time
that a schedule lets it work, from which on none is better."""
_MORE = 1.01
"""Times as fast must twice the replicas be to be worth a further look."""
_UNIT = 1000.0
"""Units of simulated time in a second, whose lengths are whole numbers."""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Given GPUs, as the options of the audit say.

    Attributes:
        step_s: one train step of the run's batch, seconds.
        tokens_per_s: tokens a second of one answer, on a replica with all its slots in use.
        slots: answers that a replica samples at a time.
    """

    step_s: float
    tokens_per_s: float
    slots: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A schedule with the least replicas that get nearly the most out of it.

    Attributes:
        busy: share of its time that the trainer works.
        episodes_per_s: that are played and trained.
    """

    schedule: ScheduleConfig
    replicas: int
    busy: float
    episodes_per_s: float


@dataclass(kw_only=True)
class _Drawn:
    """Groups whose answers take as long as measured ones, drawn by a seed.

    Attributes:
        lengths: seconds of sampling, and of all else, of each measured episode, by task.
        size: answers of a group.
    """

    lengths: Sequence[Sequence[tuple[float, float]]]
    size: int
    _groups: dict[int, Work] = field(default_factory=dict)

    def group(self, group_id: int) -> Work:
        """See `Groups`."""
        if group_id not in self._groups:
            chance = random.Random(group_id)
            own = chance.choices(chance.choice(self.lengths), k=self.size)
            self._groups[group_id] = Work(
                tokens=tuple(max(1, round(_UNIT * sampling)) for sampling, _ in own),
                score_s=tuple(_UNIT * rest for _, rest in own),
            )
        return self._groups[group_id]


def replica_finding(
    asked: Asked, run: RunConfig, trainer: Trainer | None
) -> tuple[Finding, Plan | None]:
    """What keeps the trainer busy, and the schedule that does it best."""
    if trainer is None:
        return not_simulated(), None
    lengths = _lengths(asked, trainer)
    if not lengths:
        said = "no episode has a reward and tokens: the server must say how many it sampled"
        return _finding(Verdict.NOT_MEASURED, said), None
    drawn = _Drawn(lengths=lengths, size=run.group_size)
    own = _least(run.schedule, run, trainer, drawn)
    plans = [own] if own.busy >= _NEAR else [own, *_others(run, trainer, drawn)]
    best = max(plans, key=lambda plan: (round(plan.busy, 2), -plan.replicas))
    sampled = fmean(seconds for task in lengths for seconds, _ in task) * trainer.tokens_per_s
    said = f"{sampled:.0f} tokens an episode, {trainer.step_s:g} s a train step: " + "; ".join(
        _told(plan, asked.cpu_s) for plan in ([own] if best is own else [own, best])
    )
    return _finding(Verdict.PASS, said), best


def not_simulated() -> Finding:
    """What stands in the report of an audit without a trainer."""
    said = "no trainer is given: --url, --step-seconds, --tokens-per-second and --slots"
    return _finding(Verdict.NOT_MEASURED, said)


def _lengths(asked: Asked, trainer: Trainer) -> list[list[tuple[float, float]]]:
    """Seconds of sampling at the trainer's replicas, and of all else, of each task's episodes."""
    found = []
    for number in range(len(asked.tasks)):
        own = asked.outcomes[number * asked.samples : (number + 1) * asked.samples]
        task = []
        for one in own:
            exchanges = asked.exchanges[one.episode]
            tokens = sum(exchange.sampled for exchange in exchanges)
            if one.reward is not None and tokens:
                rest = max(0.0, one.seconds - sum(exchange.seconds for exchange in exchanges))
                task.append((tokens / trainer.tokens_per_s, rest))
        if task:
            found.append(task)
    return found


def _others(run: RunConfig, trainer: Trainer, drawn: _Drawn) -> list[Plan]:
    presets = [name for name in SCHEDULE_PRESETS if name != run.schedule.preset]
    points = [ScheduleConfig.model_validate({"preset": name}) for name in presets]
    return [_least(point, run, trainer, drawn) for point in points]


def _least(schedule: ScheduleConfig, run: RunConfig, trainer: Trainer, drawn: _Drawn) -> Plan:
    """Doubled until more are no faster, then the least that are nearly as fast."""
    known: dict[int, float] = {}

    def busy(replicas: int) -> float:
        if replicas not in known:
            known[replicas] = _busy(schedule, run, trainer, drawn, replicas)
        return known[replicas]

    most = 1
    while most < _MOST and busy(2 * most) > _MORE * busy(most):
        most *= 2
    replicas = _first(most, lambda count: busy(count) >= _BUSY * busy(most))
    batch = run.batch_groups * run.group_size
    return Plan(
        schedule=schedule,
        replicas=replicas,
        busy=busy(replicas),
        episodes_per_s=batch * busy(replicas) / trainer.step_s,
    )


def _first(most: int, enough: Callable[[int], bool]) -> int:
    """The smallest number up to `most` that is enough; `most` is, and so are all above one."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _busy(
    schedule: ScheduleConfig, run: RunConfig, trainer: Trainer, drawn: _Drawn, replicas: int
) -> float:
    """Share of its time that the trainer works, once the first batches are trained."""
    answers, first = run.batch_groups * run.group_size, schedule.max_staleness
    steps = first + max(3, min(_STEPS, ceil(_WORK / answers)))
    hardware = Hardware(
        replicas=replicas,
        slots=trainer.slots,
        sandboxes=2 * answers * (schedule.max_staleness + 1),  # cores are counted apart
        train_s=_UNIT * trainer.step_s,
        push_s=_UNIT * _PUSH * trainer.step_s,
    )
    setup = Setup(
        schedule=schedule,
        batch_groups=run.batch_groups,
        steps=steps,
        hardware=hardware,
        trace=drawn,
    )
    ended = Oracle(setup, BLIND).ended
    return (steps - 1 - first) * hardware.train_s / (ended[-1] - ended[first])


def _told(plan: Plan, cpu_s: float) -> str:
    cores = max(1, ceil(plan.episodes_per_s * cpu_s))
    return (
        f"`{plan.schedule.preset}` keeps it busy for {plan.busy:.0%} of its time with "
        f"{plan.replicas} replica{'s' * (plan.replicas > 1)}, {plan.episodes_per_s:.3g} episodes a "
        f"second and {cores} core{'s' * (cores > 1)} for them"
    )


def _finding(verdict: Verdict, evidence: str) -> Finding:
    return Finding(check=REPLICAS, question=_QUESTION, verdict=verdict, evidence=evidence)
