"""The figures of a run's records, by flat names."""

from collections.abc import Iterator, Mapping
from typing import Any

from services.protocol.run.evaluation import Evaluation

_ELSEWHERE = ("step", "evaluations", "heldout_pass_rate", "heldout_step")
"""Of a step's line: the step itself, and what `of_evaluation` gives at the step it is of."""


def of_step(line: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a line of `metrics.jsonl`; those below a key are named `key/name`."""
    return dict(_flat({key: value for key, value in line.items() if key not in _ELSEWHERE}, ""))


def of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """What one evaluation measured, below `evaluation/NAME/`."""
    prefix = f"evaluation/{evaluation.name}/"
    figures = {f"{prefix}pass_at_{k}": rate for k, rate in evaluation.pass_at.items()}
    if evaluation.reward is not None:
        figures[f"{prefix}reward"] = evaluation.reward
    return figures | {f"{prefix}graded": evaluation.graded, f"{prefix}seconds": evaluation.seconds}


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
