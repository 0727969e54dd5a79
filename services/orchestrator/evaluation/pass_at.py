"""Pass rates from several answers to each task."""

from collections.abc import Sequence
from math import comb
from statistics import fmean


def pass_at_k(answers: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` answers passes, from `answers` of which `passed` do.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al., "Evaluating Large Language
    Models Trained on Code", 2021, arXiv:2107.03374, equation 1: the share of all choices of k
    out of the n answers that hold one that passes. (1 - (1 - c/n)^k is biased.)

    Raises:
        ValueError: not 0 <= passed <= answers and 1 <= k <= answers.
    """
    if not (0 <= passed <= answers and 1 <= k <= answers):
        raise ValueError(f"pass@{k} of {passed} passed among {answers} answers is not defined")
    return 1.0 - comb(answers - passed, k) / comb(answers, k)


def pass_rates(counts: Sequence[tuple[int, int]], samples: int) -> dict[int, float]:
    """Mean pass@k over tasks, for k = 1, 2, 4, ... and `samples`.

    `counts` has graded and passed answers of each task. A task with fewer than k graded
    answers does not count for that k; a k that no task can tell of is left out.
    """
    rates = {}
    for k in sorted({2**power for power in range(samples.bit_length())} | {samples}):
        told = [pass_at_k(answers, passed, k) for answers, passed in counts if answers >= k]
        if told:
            rates[k] = fmean(told)
    return rates
