"""The configurations of `benchmarks.learning`: each is the demo's run file with changes."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millrace_tools.demo.demo import RUN_FILE
from services.protocol.run.orchestrator import RunConfig
from services.protocol.yaml_text import load_yaml

REFERENCE = "presets/sync"
"""The others are compared with it: on-policy GRPO."""

STALENESS = (0, 1, 2, 4, 8)
TWICE = {
    "staleness/behaviour_clip/0": "presets/sync",
    "staleness/behaviour_clip/1": "presets/one_step_off",
}
"""Places of the study that a preset already fills."""

ON_POLICY = ("behaviour_clip", "no_correction", "recomputed_as_behaviour")
"""Corrections that are run at staleness 0, too; there the others are all one algorithm."""


COMMON: dict[str, Any] = {
    # Oftener than the demo, whose four points make no curve; and no checkpoint but the last.
    "evaluation": {"tasks": 100, "every": 5},
    "checkpoint": {"every": 1000},
}
"""All of them change these keys of the demo's run file."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A run that is made once for each seed.

    Attributes:
        name: `part/what`, unique.
        changes: keys of the run file beyond `COMMON`, nested as they are there.
    """

    name: str
    changes: Mapping[str, Any]

    @property
    def part(self) -> str:
        """`presets`, `algorithms` or `staleness`."""
        return self.name.partition("/")[0]

    @property
    def overrides(self) -> dict[str, Any]:
        """All keys that replace those of the demo's run file."""
        return _merged(COMMON, self.changes)

    def run_data(self, **values: Any) -> dict[str, Any]:
        """The content of its run file; `values` are further keys at the top."""
        return _merged(_merged(load_yaml(RUN_FILE), self.overrides), values)

    def run_config(self, **values: Any) -> RunConfig:
        """The run as the orchestrator gets it: as if the demo's run file held the changes."""
        data = self.run_data(**values)
        data["task_file"] = str(RUN_FILE.parent / data["task_file"])
        return RunConfig.from_data(data, source=self.name)


GRPO = {"preset": "grpo"}

PRESETS = ("sync", "one_step_off", "stream", "partial", "async")

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": GRPO},
    "dr_grpo": {"algorithm": {"preset": "dr_grpo", "fixed_length": 16}},
    "dapo": {"algorithm": {"preset": "dapo"}, "schedule": {"dynamic_sampling": True}},
    "gspo": {"algorithm": {"preset": "gspo", "clip_low": 0.1, "clip_high": 0.1}},
    "cispo": {"algorithm": {"preset": "cispo"}},
    # A plain policy gradient is right for the first update of a batch only.
    "rloo": {"algorithm": {"preset": "rloo", "ratio_anchor": "proximal", "minibatches": 1}},
    "reinforce_plus_plus": {"algorithm": {"preset": "reinforce_plus_plus"}},
    "ppo": {
        "algorithm": {
            "preset": "ppo",
            "gae_lambda": 1.0,
            "critic": {"learning_rate": 1e-3, "warmup_steps": 2},
        }
    },
    "grpo_kl": {"algorithm": GRPO | {"kl": {"coefficient": 0.01, "estimator": "k3"}}},
}
"""Every algorithm, under `one_step_off`, with what a user of it would choose for this task."""

_PROXIMAL = {"ratio_anchor": "proximal"}

CORRECTIONS: dict[str, dict[str, Any]] = {
    "behaviour_clip": {},
    "no_correction": {"loss": "reinforce"},
    "decoupled": _PROXIMAL | {"mismatch_cap": 1e6},
    "truncated": _PROXIMAL | {"mismatch_correction": "truncate", "mismatch_cap": 2.0},
    "masked": _PROXIMAL
    | {"mismatch_correction": "mask", "mismatch_floor": 0.5, "mismatch_cap": 2.0},
    "sequence_truncated": _PROXIMAL
    | {"mismatch_correction": "truncate", "mismatch_level": "sequence", "mismatch_cap": 2.0},
    "geometric_masked": _PROXIMAL
    | {
        "mismatch_correction": "mask",
        "mismatch_level": "geometric",
        "mismatch_floor": 0.8,
        "mismatch_cap": 1.25,
    },
    "recomputed_as_behaviour": _PROXIMAL | {"mismatch_correction": "none"},
}
"""Corrections of stale samples before the update. The last one is a mistake: it takes the
logprobs that the trainer recomputes for those of the policy that sampled."""


def staleness_name(correction: str, bound: int) -> str:
    """Name of the configuration that is run for this correction and `max_staleness`."""
    name = f"staleness/{correction}/{bound}"
    return TWICE.get(name, name)


def configurations() -> list[Configuration]:
    """All of them, in the order in which they are worth running."""
    return [*_presets(), *_algorithms(), *_staleness()]


def compared(part: str) -> list[str]:
    """Names of a part's configurations, and of the reference before them."""
    names = [one.name for one in configurations() if one.part == part]
    return names if REFERENCE in names else [REFERENCE, *names]


def label(name: str) -> str:
    """The name of a configuration in figures and tables."""
    return "sync GRPO" if name == REFERENCE else name.partition("/")[2]


def _presets() -> Iterator[Configuration]:
    for preset in PRESETS:
        yield Configuration(
            name=f"presets/{preset}",
            changes={"schedule": {"preset": preset}, "algorithm": GRPO},
        )


def _algorithms() -> Iterator[Configuration]:
    for name, changes in ALGORITHMS.items():
        if changes != {"algorithm": GRPO}:  # presets/one_step_off
            schedule = {"preset": "one_step_off"}
            yield Configuration(
                name=f"algorithms/{name}", changes=_merged({"schedule": schedule}, changes)
            )


def _staleness() -> Iterator[Configuration]:
    for bound in reversed(STALENESS):
        for correction in reversed(list(CORRECTIONS) if bound else ON_POLICY):
            if f"staleness/{correction}/{bound}" not in TWICE:
                yield staleness_configuration(correction, bound)


def staleness_configuration(correction: str, bound: int) -> Configuration:
    """A batch is the oldest groups, in the order of their prompts, and as many batches are
    open as the bound lets be: then nearly every group is as stale as it may be."""
    schedule = {"preset": "sync", "max_staleness": bound, "batches_in_flight": bound + 1}
    return Configuration(
        name=f"staleness/{correction}/{bound}",
        changes={"schedule": schedule, "algorithm": GRPO | CORRECTIONS[correction]},
    )


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else copy.deepcopy(value)
    return merged
