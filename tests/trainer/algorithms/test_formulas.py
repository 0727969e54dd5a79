"""Every loss and its gradient against the formula, written out in plain Python floats.

Nothing here comes from the code under test. The gradient is taken by central differences
of `objective`, whose second argument stands for what the papers put under a stop-gradient.
"""

import itertools
import math
import random
from typing import Any

import pytest
import torch

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.losses.aggregation import denominator, token_shares
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.tokens import ScoredTokens

Sequences = list[list[float]]
LENGTHS = (3, 1, 5, 2, 4)
FIXED = 7


def draw_case(seed: int) -> dict[str, Sequences]:
    """Logprobs up to half a nat apart, so that every clip and mask acts on some tokens."""
    draw = random.Random(seed)
    behaviour = [[draw.uniform(-3, -0.2) for _ in range(n)] for n in LENGTHS]
    shift = [draw.uniform(-0.3, 0.3) for _ in LENGTHS]
    proximal = [
        [b + s + draw.gauss(0, 0.2) for b in one] for one, s in zip(behaviour, shift, strict=True)
    ]
    current = [[p + draw.gauss(0, 0.3) for p in one] for one in proximal]
    advantage = [[a] * n for n, a in zip(LENGTHS, [1.0, -0.5, 0.25, -1.5, 0.7], strict=True)]
    return {
        "current": current, "behaviour": behaviour, "proximal": proximal, "advantage": advantage
    }  # fmt: skip


def token_loss(name: str, l: float, frozen: float, ratio: float, s: float, a: float, c: Any):  # noqa: E741
    low, high = 1 - c.clip_low, 1 + c.clip_high
    if name == "clip":
        bounded = min(ratio * a, min(max(ratio, low), high) * a)
        return -max(bounded, c.dual_clip * a) if c.dual_clip and a < 0 else -bounded
    if name == "dppo":
        moved = math.exp(frozen) - math.exp(l) / ratio  # the mask has no gradient
        if (a > 0 and moved > c.clip_high) or (a < 0 and moved < -c.clip_low):
            return 0.0
        return -max(ratio * a, c.dual_clip * a) if c.dual_clip and a < 0 else -ratio * a
    if name == "sapo":
        tau = c.gate_positive if a > 0 else c.gate_negative
        return -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * a
    if name == "gspo":
        return -min(s * a, min(max(s, low), high) * a)
    if name == "cispo":
        frozen_ratio = ratio / math.exp(l - frozen)
        return -min(max(frozen_ratio, low), high) * a * l
    return -a * l


def mismatch_weight(c: AlgorithmConfig, t: int, p: list[float], b: list[float]) -> float:
    gaps = [x - y for x, y in zip(p, b, strict=True)]
    rho = {
        "token": math.exp(gaps[t]),
        "sequence": math.exp(sum(gaps)),
        "geometric": math.exp(sum(gaps) / len(gaps)),
    }[c.mismatch_level]
    if c.mismatch_correction == "none":
        return 1.0
    if c.mismatch_correction == "truncate":
        return min(max(rho, c.mismatch_floor), c.mismatch_cap)
    if not c.mismatch_floor <= rho <= c.mismatch_cap:
        return 0.0
    return 1.0 if c.mismatch_level == "geometric" else rho


def is_masked(c: AlgorithmConfig, frozen: list[float], p: list[float], b: list[float], a: float):
    """Of a whole answer."""
    mask = c.sequence_mask
    mean = math.exp(sum(x - y for x, y in zip(p, b, strict=True)) / len(p))
    if not mask.geometric_floor <= mean <= (mask.geometric_cap or math.inf):
        return True
    drift = sum(x - y for x, y in zip(b, frozen, strict=True)) / len(b)
    return mask.negative_kl is not None and a < 0 and drift > mask.negative_kl


def objective(current: Sequences, frozen: Sequences, case: Any, c: AlgorithmConfig) -> float:
    total = 0.0
    for i, answer in enumerate(current):
        b, p = case["behaviour"][i], case["proximal"][i]
        anchor = b if c.ratio_anchor == "behaviour" else p
        s = math.exp(sum(x - y for x, y in zip(answer, anchor, strict=True)) / len(answer))
        own = 0.0
        for t, l in enumerate(answer):  # noqa: E741
            a, ratio = case["advantage"][i][t], math.exp(l - anchor[t])
            value = token_loss(c.loss, l, frozen[i][t], ratio, s, a, c)
            if c.ratio_anchor == "proximal":
                value *= mismatch_weight(c, t, p, b)
            own += 0.0 if is_masked(c, frozen[i], p, b, a) else value
        total += own / len(answer) if c.aggregation == "sequence_mean" else own
    return (
        total
        / {
            "token_mean": sum(LENGTHS),
            "sequence_mean": len(LENGTHS),
            "fixed_length": len(LENGTHS) * FIXED,
        }[c.aggregation]
    )


def gradient(case: Any, c: AlgorithmConfig) -> list[float]:
    step, result = 1e-6, []
    for i, answer in enumerate(case["current"]):
        for t in range(len(answer)):
            moved = []
            for sign in (1, -1):
                changed = [list(one) for one in case["current"]]
                changed[i][t] += sign * step
                moved.append(objective(changed, case["current"], case, c))
            result.append((moved[0] - moved[1]) / (2 * step))
    return result


def computed(case: Any, c: AlgorithmConfig) -> tuple[float, list[float]]:
    flat = {
        name: torch.tensor([x for one in values for x in one], dtype=torch.float64)
        for name, values in case.items()
    }
    flat["current"].requires_grad_()
    sequence = torch.tensor([i for i, n in enumerate(LENGTHS) for _ in range(n)])
    tokens = ScoredTokens(sequence=sequence, sequences=len(LENGTHS), **flat)
    losses = policy_losses(tokens, c).tokens.loss
    weight = torch.ones_like(losses)
    shares = token_shares(weight, sequence, torch.tensor(LENGTHS).double(), c.aggregation)
    loss = (losses * shares).sum() / denominator(sum(LENGTHS), len(LENGTHS), c)
    loss.backward()
    assert tokens.current.grad is not None
    return loss.item(), tokens.current.grad.tolist()


def config(loss: str, aggregation: str, **settings: Any) -> AlgorithmConfig:
    clips = {"gspo": (0.05, 0.08), "cispo": (0.3, 0.4), "dppo": (0.05, 0.08)}
    clip = clips.get(loss, (0.2, 0.28))
    return AlgorithmConfig(
        loss=loss,
        aggregation=aggregation,
        fixed_length=FIXED if aggregation == "fixed_length" else None,
        clip_low=clip[0],
        clip_high=clip[1],
        **settings,
    )


LOSSES = ("clip", "dppo", "gspo", "cispo", "sapo", "reinforce")
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_and_its_gradient_are_the_formula(loss: str, aggregation: str) -> None:
    # Where the mean is not per answer GSPO's tokens share one ratio through equation 13,
    # which has the formula's gradient because they share one advantage, too.
    for seed in range(5):
        case, c = draw_case(seed), config(loss, aggregation)
        value, slope = computed(case, c)
        assert value == pytest.approx(
            objective(case["current"], case["current"], case, c), rel=1e-12
        )
        assert slope == pytest.approx(gradient(case, c), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        *list(itertools.product(("truncate", "mask"), ("token", "sequence", "geometric"))),
        ("none", "token"),
    ],
)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_corrected_loss_and_its_gradient_are_the_formula(
    loss: str, kind: str, level: str
) -> None:
    acted = 0
    for seed in range(5):
        case = draw_case(seed)
        c = config(
            loss,
            "sequence_mean",
            ratio_anchor="proximal",
            mismatch_correction=kind,
            mismatch_level=level,
            mismatch_cap=2.0 if kind == "none" else 1.2,
            mismatch_floor=0.9 if kind == "mask" else 0.0,
        )
        value, slope = computed(case, c)
        assert value == pytest.approx(
            objective(case["current"], case["current"], case, c), rel=1e-12
        )
        if loss == "gspo" and level == "token" and kind != "none":
            continue  # weights differ within an answer; equation 13 then has its own gradient
        assert slope == pytest.approx(gradient(case, c), rel=1e-6, abs=1e-9)
        acted += sum(slope_t == 0 for slope_t in slope)
    if kind == "mask" and not (loss == "gspo" and level == "token"):
        assert acted > 0  # the mask took something away


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_truncated_on_both_sides_is_the_formula(loss: str) -> None:
    c = config(loss, "token_mean", ratio_anchor="proximal", mismatch_floor=0.9, mismatch_cap=1.2)
    case = draw_case(1)
    value, slope = computed(case, c)
    assert value == pytest.approx(objective(case["current"], case["current"], case, c), rel=1e-12)
    if loss != "gspo":
        assert slope == pytest.approx(gradient(case, c), rel=1e-6, abs=1e-9)


MASKS: dict[str, dict[str, float]] = {
    "geometric": {"geometric_floor": 0.95, "geometric_cap": 1.1},
    "negative_kl": {"negative_kl": 0.01},
    "both": {"geometric_cap": 1.1, "negative_kl": 0.01},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("loss", LOSSES)
def test_answers_are_masked_beside_a_truncated_weight_of_their_tokens(loss: str, mask: str) -> None:
    acted, kept = 0, 0
    for seed in range(6):
        case, settings = draw_case(seed), {"sequence_mask": MASKS[mask], "mismatch_cap": 1.2}
        c = config(loss, "sequence_mean", ratio_anchor="proximal", **settings)
        value, slope = computed(case, c)
        expected = objective(case["current"], case["current"], case, c)
        assert value == pytest.approx(expected, rel=1e-12)
        if loss != "gspo":
            assert slope == pytest.approx(gradient(case, c), rel=1e-6, abs=1e-9)
        for i, n in enumerate(LENGTHS):
            own = case["current"][i], case["proximal"][i], case["behaviour"][i]
            masked = is_masked(c, *own, case["advantage"][i][0])
            place = sum(LENGTHS[:i])
            assert not masked or slope[place : place + n] == [0.0] * n
            acted, kept = acted + masked, kept + (not masked)
    assert acted > 0
    assert kept > 0


def test_off_policy_masking_needs_no_proximal_logprobs() -> None:
    mask = {"negative_kl": 0.01}
    case, c = draw_case(2), config("clip", "token_mean", sequence_mask=mask)
    value, _ = computed(case, c)
    assert value == pytest.approx(objective(case["current"], case["current"], case, c), rel=1e-12)


def test_gspo_tokens_of_different_weight_follow_equation_13() -> None:
    """Gradient of a token: -(its own weight and advantage) times the answer's ratio."""
    case = draw_case(3)
    c = config("gspo", "token_mean").model_copy(update={"clip_low": 0.99, "clip_high": 99.0})
    case["advantage"] = [[a * (1 + t) for t, a in enumerate(one)] for one in case["advantage"]]
    _, slope = computed(case, c)
    expected = []
    for answer, b, own in zip(case["current"], case["behaviour"], case["advantage"], strict=True):
        s = math.exp(sum(x - y for x, y in zip(answer, b, strict=True)) / len(answer))
        expected += [-s * a / sum(LENGTHS) for a in own]
    assert slope == pytest.approx(expected, rel=1e-12)
