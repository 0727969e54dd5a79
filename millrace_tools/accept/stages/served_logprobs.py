"""Exactness: the logprob of every served token is that of the version on its label."""

import json
from itertools import chain

from millrace_tools.accept.bench import Bench, measured_by
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.stage import Outcome, Stage
from millrace_tools.accept.stages.weight_push import Pushes, push

_PROGRAM = "services.trainer.self_test.served_logprobs"
_LARGEST, _MEAN_BFLOAT16 = 1e-4, 0.05
"""Nats: the largest gap of a token in float32, and the mean one in bfloat16, where rounding moves
single tokens further and which no machine has confirmed yet."""


def exactness(bench: Bench, deadline: Deadline) -> Outcome:
    """Answers that cross pushes, beside a forward pass in float64 of the run's checkpoints."""
    done = push(bench.running, quick=bench.quick, deadline=deadline)
    path = bench.folder / "answers.json"
    path.write_text(json.dumps([one.trajectory for one in done.answers]), encoding="utf-8")
    try:
        found = measured_by(
            _PROGRAM,
            done.status.run_dir,
            str(path),
            "--initial",
            str(bench.running.model_dir),
            deadline=deadline,
        )
    finally:
        path.unlink()
    versions = set(chain.from_iterable(one.versions for one in done.answers))
    figures = [
        Figure(name="tokens", value=found["tokens"]),
        Figure(name="answers across a push", value=len(done.crossing)),
        Figure(name="versions", value=len(versions)),
    ]
    if found["tokens"]:
        figures.append(Figure(name="largest gap", value=found["largest_gap"], unit="nats"))
        figures.append(Figure(name="mean gap", value=found["mean_gap"], unit="nats"))
    problem = _problem(done, found["mean_gap"], found["largest_gap"], rounded=bench.gpus > 0)
    return Outcome(figures=tuple(figures), problem=problem)


def _problem(done: Pushes, mean: float | None, largest: float | None, *, rounded: bool) -> str:
    if mean is None or largest is None:
        return "no token is of a version that the run published"
    if not done.crossing:
        return "no answer was open across a push: they were too short to show anything"
    if rounded and mean > _MEAN_BFLOAT16:
        return f"served logprobs are {mean:.2g} nats off on average"
    if not rounded and largest > _LARGEST:
        return f"a served logprob is {largest:.2g} nats off"
    return ""


STAGES = (
    Stage(
        name="logprobs",
        purpose="every served logprob is that of the version on its label, across pushes too",
        deadline_s=900.0,
        run=exactness,
        services=True,
    ),
)
