"""The example learns, in each placement of trainer and engines that fits."""

import json
from functools import partial
from pathlib import Path

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Curve, Figure
from millrace_tools.accept.services import Changes
from millrace_tools.accept.stage import Outcome, Stage
from services.protocol.run.orchestrator import RunStatus

_STEPS, _QUICK_STEPS = 30, 3
_HELD_OUT, _QUICK_HELD_OUT = 100, 8
_SHARED: Changes = {
    "trainer": {"placement": "shared", "gpus_per_rank": 0},
    "rollout_server": {"placement": "shared", "replicas": 1},
}


def separate(bench: Bench, deadline: Deadline) -> Outcome:
    """Trainer and engines side by side, as the services were started."""
    return _learn(bench, deadline)


def shared(bench: Bench, deadline: Deadline) -> Outcome:
    """Trainer and engine in turn; not tried where the deployment's check refuses it."""
    device = {"device": "cuda" if bench.gpus else "cpu"}
    changes = {**_SHARED, "trainer": {**_SHARED["trainer"], **device}}
    bench.running.change(changes, deadline)
    return _learn(bench, deadline)


def _learn(bench: Bench, deadline: Deadline) -> Outcome:
    services = bench.running
    services.wait_until_whole(deadline)
    tasks = _QUICK_HELD_OUT if bench.quick else _HELD_OUT
    config = services.run_config(
        steps=_QUICK_STEPS if bench.quick else _STEPS, evaluation={"tasks": tasks, "every": 10}
    )
    status = services.run(config, deadline)
    summary = status.summary
    assert summary is not None, "a run that finished has one"
    before, after = summary.heldout_pass_rate_before, summary.heldout_pass_rate_after
    figures = [
        Figure(name="train steps", value=summary.train_steps),
        Figure(name="time", value=summary.wall_s, unit="s"),
        Figure(name="tokens sampled", value=summary.tokens_sampled),
    ]
    if before is not None and after is not None:
        figures.append(Figure(name="held-out before", value=before))
        figures.append(Figure(name="held-out after", value=after))
    problem = problem_of(status, learns=not bench.quick)
    return Outcome(figures=tuple(figures), curves=curves_of(Path(status.run_dir)), problem=problem)


def problem_of(status: RunStatus, *, learns: bool) -> str:
    """Why the run is not as it should be.

    Args:
        status: at its end.
        learns: whether it had the steps to become better.
    """
    summary, ledger = status.summary, status.ledger
    closed = ledger.trained + ledger.filtered + ledger.expired + ledger.failed
    if ledger.admitted != closed + ledger.in_flight:
        return f"the ledger does not balance: {ledger.admitted} groups admitted, {closed} closed"
    if summary is None or summary.failures:
        return f"sample groups failed: {summary.failures if summary else 'unknown'}"
    before, after = summary.heldout_pass_rate_before, summary.heldout_pass_rate_after
    if learns and (before is None or after is None):
        return f"the held-out pass rate was not measured: {summary.heldout_problem}"
    if learns and before is not None and after is not None and after <= before:
        return f"held-out pass rate {before:.0%} before and {after:.0%} after: it did not learn"
    return ""


def curves_of(run_dir: Path) -> tuple[Curve, ...]:
    """Mean reward of each train step, as the run wrote it."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    if not steps:
        return ()
    return (
        Curve(
            title="Mean reward",
            x=tuple(float(one["step"]) for one in steps),
            y=tuple(float(one["reward"]) for one in steps),
        ),
    )


def _stage(placement: str, run: "partial[Outcome]") -> Stage:
    return Stage(
        name=f"learning-{placement}",
        purpose=f"thirty train steps of the example in placement: {placement} raise the held-out "
        "pass rate",
        deadline_s=1800.0,
        run=run,
        services=True,
    )


STAGES = (_stage("separate", partial(separate)), _stage("shared", partial(shared)))
