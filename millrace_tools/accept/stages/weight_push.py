"""Weight pushes: each transport that should work here, under answers that are being generated."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from millrace_tools.accept.answers import Answer, Answers
from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.services import MODEL, Services
from millrace_tools.accept.stage import Outcome, Stage
from services.protocol.run.orchestrator import RunStatus
from services.protocol.weights.version_ledger import VersionRecord

_AT_ONCE, _TOKENS = 3, 300
_STEPS, _QUICK_STEPS = 4, 2
_SMALL = {"batch_groups": 4, "group_size": 4, "checkpoint": {"every": 1}}


@dataclass(frozen=True, kw_only=True)
class Pushes:
    """A run whose versions went out while answers were generated.

    Attributes:
        status: of the run, at its end.
        answers: those that were generated meanwhile.
        records: what became of each version that it published.
    """

    status: RunStatus
    answers: Sequence[Answer]
    records: Sequence[VersionRecord]

    @property
    def crossing(self) -> list[Answer]:
        """Answers with tokens of several versions."""
        return [one for one in self.answers if len(one.versions) > 1]


def push(services: Services, *, quick: bool, deadline: Deadline) -> Pushes:
    """Train a few steps, each of which publishes a version, while answers are generated."""
    services.wait_until_whole(deadline)
    newest = services.table().newest_version
    before = -1 if newest is None else newest
    config = services.run_config(steps=_QUICK_STEPS if quick else _STEPS, **_SMALL)

    async def train() -> tuple[RunStatus, list[Answer]]:
        async with (
            Answers(services.url, MODEL) as answers,
            answers.streaming(_AT_ONCE, _TOKENS) as found,
        ):
            status = await services.running(config, deadline)
        return status, found

    status, answers = asyncio.run(asyncio.wait_for(train(), deadline.left_s("train steps")))
    last = status.policy_version
    assert last is not None, "a run that finished has published"
    deadline.wait_until(
        lambda: all(one.committed_version == last for one in services.table().leased),
        f"version {last} on every replica",
    )
    services.wait_until_whole(deadline)
    records = [one for one in services.versions() if before < one.version <= last]
    return Pushes(status=status, answers=answers, records=records)


def over(transport: str, bench: Bench, deadline: Deadline) -> Outcome:
    """Pushes of one transport, which the weight bus is told to use."""
    services = bench.running
    services.change({"weight_bus": {"transport": transport}}, deadline)
    done = push(services, quick=bench.quick, deadline=deadline)
    return Outcome(figures=figures_of(done), problem=problem_of(done, services.replicas))


def figures_of(done: Pushes) -> tuple[Figure, ...]:
    """Versions and their digests, times of delivery, and the gap in answers."""
    committed = [one for record in done.records for one in record.outcomes if one.error is None]
    figures = [
        Figure(name="versions", value=len(done.records)),
        Figure(name="digests", value=len({one.digest for one in done.records})),
    ]
    for name in ("stage_s", "commit_s", "paused_s"):
        times = [value for one in committed if (value := getattr(one, name)) is not None]
        if times:
            title = name.removesuffix("_s")
            figures.append(Figure(name=title, value=median(times), unit="s"))
    if crossing := done.crossing:
        gap = round(median(one.gap_tokens for one in crossing))
        figures.append(Figure(name="gap", value=gap, unit="tokens"))
    return tuple(figures)


def problem_of(done: Pushes, replicas: int) -> str:
    """Why the pushes were not as they should be; a replica commits only after its digests match."""
    for one in done.records:
        errors = [outcome.error for outcome in one.outcomes if outcome.error is not None]
        if errors:
            return f"version {one.version}: {errors[-1]}"
    last = done.records[-1] if done.records else None
    if last is None or last.version != done.status.policy_version:
        return "the weight bus does not know the run's last version"
    if last.commits < replicas:
        return f"{last.commits} of {replicas} engines committed version {last.version}"
    if len({one.digest for one in done.records}) < len(done.records):
        return "two versions have the same digest: a train step changed nothing"
    return ""


def _stage(transport: str, *, gpus: int = 0) -> Stage:
    return Stage(
        name=f"push-{transport}",
        purpose=f"versions over {transport}, whole and under their digests, while answers go on",
        deadline_s=600.0,
        run=partial(over, transport),
        gpus=gpus,
        services=True,
    )


STAGES = (_stage("gloo"), _stage("nccl", gpus=2), _stage("shared_memory"))
