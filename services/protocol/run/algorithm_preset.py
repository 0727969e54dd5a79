"""Published algorithms: what each chooses, as keys of a run file, and what it leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from services.protocol.run.schedule import may_be_stale

PresetName = Literal[
    "grpo", "dr_grpo", "dapo", "dppo", "gspo", "cispo", "sapo", "rloo", "maxrl", "lite_ppo",
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo", "raft",
    "on_policy_distillation", "self_distillation",
]  # fmt: skip
_PPO_CLIP = {"clip_low": 0.2, "clip_high": 0.2}
_WEIGHTED = {"loss": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token_mean"}
"""An importance weight times the advantage of every token, with no lower bound."""
_TOGETHER = {"fixed_length": "aggregation", "overlong_buffer": "overlong_limit"}
"""Keys that mean nothing without another: where the run file has that one, they are its own."""
_OF_SINGLE_ANSWERS = {"overlong_limit", "overlong_buffer"}
"""Keys that no preset sets in a run with an environment: there `max_tokens` bounds each call."""
_NUMBER = TypeAdapter(int)


@dataclass(frozen=True, kw_only=True)
class AlgorithmPreset:
    """A paper's choice. Keys that the run file has win.

    Attributes:
        keys: of `algorithm`.
        of_longest: further keys of `algorithm`, each as a share of `sampling.max_tokens`; see
            `_OF_SINGLE_ANSWERS`.
        of_stale: further keys of `algorithm` where the schedule lets stale answers be trained.
        schedule: keys of `schedule`.
        left: what the paper chooses, too, and the preset leaves to the run file.
    """

    keys: Mapping[str, Any]
    of_longest: Mapping[str, float] = field(default_factory=dict)
    of_stale: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    left: str


ALGORITHM_PRESETS: dict[str, AlgorithmPreset] = {
    "grpo": AlgorithmPreset(
        keys={**_PPO_CLIP, "aggregation": "sequence_mean"},
        left="the KL penalty in the loss, `kl.coefficient: 0.04`, which loads a reference model",
    ),
    "dr_grpo": AlgorithmPreset(
        keys={**_PPO_CLIP, "advantage": "dr_grpo", "aggregation": "fixed_length"},
        of_longest={"fixed_length": 1.0},
        left="batch size, minibatches and learning rate",
    ),
    "dapo": AlgorithmPreset(
        keys={"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"},
        of_longest={"overlong_limit": 1.0, "overlong_buffer": 0.2},
        schedule={"dynamic_sampling": True},
        left="batch size, `minibatches: 16` and learning rate; overlong filtering "
        "(`mask_truncated`), which would hide the answers that the overlong penalty punishes",
    ),
    "dppo": AlgorithmPreset(
        keys={"loss": "dppo", "clip_low": 0.15, "clip_high": 0.15},
        left="batch size, minibatches and learning rate",
    ),
    "gspo": AlgorithmPreset(
        keys={"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean"},
        left="batch size, `minibatches: 4` and learning rate",
    ),
    "cispo": AlgorithmPreset(
        keys=_WEIGHTED,
        left="DAPO's `schedule.dynamic_sampling` and length penalty (`overlong_limit`, "
        "`overlong_buffer`), which the paper uses as well; it does not publish its `clip_high`",
    ),
    "sapo": AlgorithmPreset(
        keys={"loss": "sapo", "aggregation": "sequence_mean"},
        left="batch size, minibatches and learning rate",
    ),
    "rloo": AlgorithmPreset(
        keys={
            "advantage": "rloo",
            "loss": "reinforce",
            "aggregation": "fixed_length",
            "fixed_length": 1,
        },
        of_stale={"ratio_anchor": "proximal"},
        left="the KL penalty in the reward: `kl: {where: reward, estimator: k1, coefficient: ...}`",
    ),
    "maxrl": AlgorithmPreset(
        keys={**_PPO_CLIP, "advantage": "maxrl"},
        left="rewards of 0 and 1, large groups, batch size, minibatches and learning rate",
    ),
    "lite_ppo": AlgorithmPreset(
        keys={**_PPO_CLIP, "advantage": "lite_ppo", "aggregation": "token_mean"},
        left="batch size, minibatches and learning rate",
    ),
    "reinforce_plus_plus": AlgorithmPreset(
        keys={**_PPO_CLIP, "advantage": "reinforce_plus_plus"},
        left="the KL penalty in the reward of each token: "
        "`kl: {where: reward, estimator: k1, coefficient: ...}`",
    ),
    "reinforce_plus_plus_baseline": AlgorithmPreset(
        keys={**_PPO_CLIP, "advantage": "reinforce_plus_plus_baseline"},
        left="the KL penalty in the loss: `kl: {estimator: k2, coefficient: ...}`",
    ),
    "ppo": AlgorithmPreset(
        keys={**_PPO_CLIP, "advantage": "gae", "aggregation": "token_mean"},
        left="several epochs over a batch (`passes`), `minibatches`, `entropy_bonus` and `kl`",
    ),
    "raft": AlgorithmPreset(
        keys={"advantage": "best", "loss": "reinforce", "aggregation": "token_mean"},
        of_stale={"ratio_anchor": "proximal"},
        left="batch size and learning rate; with `loss: clip` it is RAFT++, for which "
        "`minibatches` and `passes` may be above 1",
    ),
    # "On-Policy Distillation", Thinking Machines (2025); GKD, arXiv 2306.13649, with lambda = 1.
    "on_policy_distillation": AlgorithmPreset(
        keys={**_WEIGHTED, "distillation": {"divergence": "reverse_kl", "rewards": 0.0}},
        of_stale={"ratio_anchor": "proximal"},
        left="`distillation.teacher`; the weight of a token, which the source does not bound; "
        "`group_size: 1`, as no two answers are compared",
    ),
    # SDFT, arXiv 2601.19897, and OPSD, arXiv 2601.18734.
    "self_distillation": AlgorithmPreset(
        keys={
            **_WEIGHTED,
            "distillation": {"teacher": "policy", "divergence": "reverse_kl", "rewards": 0.0},
        },
        of_stale={"ratio_anchor": "proximal"},
        left="`distillation.context`; a teacher whose weights lag behind (SDFT) or stay as they "
        "were (OPSD): here it is the policy as it is served; divergences over the whole "
        "vocabulary instead of the sampled token",
    ),
}


def fill_in_algorithm(algorithm: Any) -> Any:
    """Data of `algorithm` with the keys that its preset chooses by itself."""
    preset = _preset_of(algorithm)
    return algorithm if preset is None else _beside(preset.keys, algorithm)


def fill_in_run(run: Any, *, max_tokens: int) -> Any:
    """Data of a run with the keys that its algorithm's preset chooses elsewhere in the run file,
    or by the longest answer.

    Args:
        run: the data.
        max_tokens: the longest answer, where the data does not say.
    """
    preset = _preset_of(run.get("algorithm")) if isinstance(run, dict) else None
    if preset is None:
        return run
    sampling, schedule = run.get("sampling", {}), run.get("schedule", {})
    filled = dict(run)
    if preset.schedule and isinstance(schedule, dict):
        filled["schedule"] = {**preset.schedule, **schedule}
    longest = None
    if isinstance(sampling, dict):
        longest = _whole(sampling.get("max_tokens", max_tokens))
    keys: dict[str, Any] = {}
    if longest is not None:
        left_out = _OF_SINGLE_ANSWERS if _has_environment(run) else ()
        shares = {name: one for name, one in preset.of_longest.items() if name not in left_out}
        keys |= {name: int(share * longest) for name, share in shares.items()}
    if may_be_stale(filled.get("schedule", {})):
        keys |= preset.of_stale
    if keys:
        filled["algorithm"] = _beside(keys, run["algorithm"])
    return filled


def _has_environment(run: dict[str, Any]) -> bool:
    tasks = run.get("tasks")
    places = [run, *(tasks if isinstance(tasks, list) else ())]
    return any(isinstance(one, dict) and one.get("environment") is not None for one in places)


def _whole(number: Any) -> int | None:
    """The number that a field makes of such data; None for what it refuses."""
    try:
        return _NUMBER.validate_python(number)
    except ValidationError:
        return None


def _preset_of(algorithm: Any) -> AlgorithmPreset | None:
    name = algorithm.get("preset") if isinstance(algorithm, dict) else None
    return ALGORITHM_PRESETS.get(name) if isinstance(name, str) else None


def _beside(keys: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The given keys, and those of a preset that they leave room for, also one level down."""
    fitting = {name: one for name, one in keys.items() if _TOGETHER.get(name) not in given}
    inner = {
        name: one | given[name]
        for name, one in fitting.items()
        if isinstance(one, dict) and isinstance(given.get(name), dict)
    }
    return fitting | given | inner
