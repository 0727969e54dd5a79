"""The algorithm of a run as it was resolved: its preset's keys, the run file's and the defaults."""

from collections.abc import Iterator

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.algorithm_preset import ALGORITHM_PRESETS
from services.protocol.run.sequence_mask import SequenceMaskConfig


def algorithm_figures(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    """Names and values, for people."""
    yield "algorithm", f"{algorithm.preset or 'no preset'}: advantage {algorithm.advantage}"
    yield "loss", f"{algorithm.loss}, {_clip(algorithm)}, {_sum(algorithm)}"
    if algorithm.ratio_anchor == "proximal":
        yield "mismatch ratio", _mismatch(algorithm)
    if (mask := algorithm.sequence_mask) != SequenceMaskConfig():
        told = ", ".join(
            f"{name} {value:g}" for name, value in mask.model_dump(exclude_defaults=True).items()
        )
        yield "masked answers", told
    if algorithm.top_entropy < 1:
        yield "tokens", f"only the {algorithm.top_entropy:.0%} with the highest entropy"
    if algorithm.overlong_limit is not None:
        limit = algorithm.overlong_limit
        begins = limit - algorithm.overlong_buffer
        yield "overlong penalty", f"from 0 at {begins:,} tokens to 1 at {limit:,} and beyond"
    if algorithm.mask_truncated:
        yield "cut-off answers", "left out of the loss"
    if algorithm.kl.coefficient:
        kl = algorithm.kl
        own = f", {kl.aggregation}" if kl.aggregation else ""
        yield "KL penalty", f"{kl.coefficient:g} x {kl.estimator}, in the {kl.where}{own}"
    if algorithm.entropy_bonus:
        yield "entropy bonus", f"{algorithm.entropy_bonus:g}"
    steps = f"{algorithm.updates} a train step"
    if algorithm.passes > 1:
        steps += f" in {algorithm.passes} passes over its batch"
    warmup = f", warm-up over {algorithm.warmup_steps}" if algorithm.warmup_steps else ""
    steps += ", Muon and AdamW" if algorithm.optimizer == "muon" else ""
    yield "optimizer steps", f"{steps}, learning rate {algorithm.learning_rate:g}{warmup}"
    if algorithm.preset is not None:
        left = ALGORITHM_PRESETS[algorithm.preset].left
        yield "left by preset", left.replace("`", "")


def _clip(algorithm: AlgorithmConfig) -> str:
    """The clip distances as bounds of the ratio, where the loss has one."""
    bounds = f"from {1 - algorithm.clip_low:g} to {1 + algorithm.clip_high:g}"
    ratio = f"ratio current/{algorithm.ratio_anchor}"
    if algorithm.loss == "clip":
        return f"{ratio} {bounds}"
    if algorithm.loss == "dppo":
        low, high = algorithm.clip_low, algorithm.clip_high
        return f"{ratio}, probability from {-low:+g} to {high:+g}"
    if algorithm.loss == "sapo":
        return f"{ratio}, gate {algorithm.gate_positive:g} and {algorithm.gate_negative:g}"
    if algorithm.loss == "gspo":
        return f"{ratio} of whole answers {bounds}"
    if algorithm.loss == "cispo":
        return f"weight current/{algorithm.ratio_anchor} {bounds}"
    if algorithm.loss == "reinforce":
        return "no clip"
    return f"clip_low {algorithm.clip_low:g} and clip_high {algorithm.clip_high:g}, if it uses them"


def _sum(algorithm: AlgorithmConfig) -> str:
    if algorithm.fixed_length is None:
        return algorithm.aggregation
    return f"{algorithm.aggregation} {algorithm.fixed_length:,}"


def _mismatch(algorithm: AlgorithmConfig) -> str:
    level, floor, cap = (
        algorithm.mismatch_level,
        algorithm.mismatch_floor,
        algorithm.mismatch_cap,
    )
    if algorithm.mismatch_correction == "none":
        return "left out"
    if algorithm.mismatch_correction == "mask":
        return f"by {level}, masked outside {floor:g} to {cap:g}"
    return (
        f"by {level}, truncated to {floor:g} and {cap:g}"
        if floor
        else f"by {level}, truncated at {cap:g}"
    )
