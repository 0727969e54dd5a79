"""The trainer's step on this machine: its maths, its memory, its speed."""

from collections.abc import Mapping
from math import isfinite

from millrace_tools.accept.bench import Bench, measured_by
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.stage import Outcome, Stage

_PROGRAM = "services.trainer.self_test.train_step"
_SIZING_SHARE = 0.1
_LIMITS = {
    "cpu": {"loss": 1e-5, "grad_norm": 1e-3, "logprobs": 1e-5, "logprobs after": 1e-4},
    "cuda": {"loss": 0.02, "grad_norm": 0.05, "logprobs": 0.05, "logprobs after": 0.1},
}
"""Largest differences from float64: of the loss, of the gradient norm as a share, and of logprobs
on average, in nats. Ranks compute in float32 on the CPU and in bfloat16 on a GPU, where no
machine has confirmed the limits yet."""


def train_step(bench: Bench, deadline: Deadline) -> Outcome:
    """One rank of the trainer, in a process of its own."""
    device = "cuda" if bench.gpus else "cpu"
    found = measured_by(_PROGRAM, "--device", device, deadline=deadline)
    gaps = gaps_of(found)
    problems = [
        f"{name} is {gap:.2g} from float64, more than {_LIMITS[device][name]:g}"
        for name, gap in gaps.items()
        if not gap <= _LIMITS[device][name]  # also where it is no number
    ]
    figures = [
        Figure(name=f"{name} off", value=gap if isfinite(gap) else str(gap))
        for name, gap in gaps.items()
    ]
    figures.append(Figure(name="speed", value=found["tokens_per_s"], unit="tokens/s"))
    figures.append(Figure(name="model", value=found["model_tflops"], unit="TFLOP/s"))
    if found["mfu"] is not None:
        figures.append(Figure(name="MFU", value=found["mfu"]))
    if "most_gib" in found:
        most, sizing = found["most_gib"], found["sizing_gib"]
        figures.append(Figure(name="memory", value=most, unit="GiB"))
        figures.append(Figure(name="sizing", value=sizing, unit="GiB"))
        if abs(most - sizing) > _SIZING_SHARE * sizing:
            problems.append(f"a step takes {most:.2f} GiB, and the sizing says {sizing:.2f}")
    return Outcome(figures=tuple(figures), problem="; ".join(problems))


def gaps_of(found: Mapping[str, float]) -> dict[str, float]:
    """How far the step is from the reference, by the names of the limits."""
    norm = found["grad_norm_float64"]
    return {
        "loss": abs(found["loss"] - found["loss_float64"]),
        "grad_norm": abs(found["grad_norm"] - norm) / norm,
        "logprobs": found["logprob_gap"],
        "logprobs after": found["logprob_gap_after"],
    }


STAGES = (
    Stage(
        name="train-step",
        purpose="a train step is that of a plain loop in float64; on GPUs its memory is the "
        "sizing's",
        deadline_s=600.0,
        run=train_step,
    ),
)
