"""The configurations of `benchmarks.learning`: each is an example's run file with changes."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT
from services.protocol.run.orchestrator import RunConfig
from services.protocol.yaml_text import load_yaml

REFERENCE = "presets/sync"
"""The others are compared with it: on-policy GRPO."""
SHOP, SHOP_REFERENCE = "rewards", "rewards/outcome"
"""The part whose runs are of examples/shop, and the run with which these are compared."""

STALENESS = (0, 1, 2, 4, 8)
TWICE = {
    "staleness/behaviour_clip/0": "presets/sync",
    "staleness/behaviour_clip/1": "presets/one_step_off",
}
"""Places of the study that a preset already fills."""

ON_POLICY = ("behaviour_clip", "no_correction", "recomputed_as_behaviour")
"""Corrections that are run at staleness 0, too; there the others are all one algorithm."""


ALGORITHM_BOUNDS = (0, 1, 4)
"""Bounds of staleness at which every algorithm with a preset is run; 1 is `one_step_off`."""

_MATRIX = load_yaml(Path(__file__).with_name("matrix.yaml"))
COMMON: dict[str, Any] = _MATRIX["common"]
ALGORITHMS: dict[str, dict[str, Any]] = _MATRIX["algorithms"]
CORRECTIONS: dict[str, dict[str, Any]] = _MATRIX["corrections"]
GRPO = ALGORITHMS["grpo"]["algorithm"]
WITH_PRESET = [name for name, keys in ALGORITHMS.items() if keys["algorithm"]["preset"] == name]


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
        """`presets`, `algorithms`, `stale_algorithms`, `staleness` or `rewards`."""
        return self.name.partition("/")[0]

    @property
    def example(self) -> str:
        """The folder of examples whose model and tasks the run has."""
        return "shop" if self.part == SHOP else "tiny_code"

    @property
    def overrides(self) -> dict[str, Any]:
        """All keys that replace those of the example's run file."""
        return merged(COMMON, self.changes)

    def run_config(self, **values: Any) -> RunConfig:
        """The run as if the example's run file held the changes; `values` are further keys."""
        folder = ROOT / "examples" / self.example
        data = merged(merged(load_yaml(folder / "run.yaml"), self.overrides), values)
        data["task_file"] = str(folder / data["task_file"])
        if "environment" in data:
            data["environment"] = f"{folder}/environment.py:{data['environment']}"
        return RunConfig.from_data(data, source=self.name)


def staleness_name(correction: str, bound: int) -> str:
    """Name of the configuration that is run for this correction and `max_staleness`."""
    name = f"staleness/{correction}/{bound}"
    return TWICE.get(name, name)


def stale_algorithm_name(algorithm: str, bound: int) -> str:
    """Name of the configuration that is run for this algorithm and `max_staleness`."""
    if algorithm == "grpo":
        return staleness_name("behaviour_clip", bound)
    if bound == 1:
        return f"algorithms/{algorithm}"
    return f"stale_algorithms/{algorithm}/{bound}"


def configurations() -> Iterator[Configuration]:
    """All of them, in the order in which they are worth running."""
    for preset in _MATRIX["presets"]:
        changes = {"schedule": {"preset": preset}, "algorithm": GRPO}
        yield Configuration(name=f"presets/{preset}", changes=changes)
    for name, changes in ALGORITHMS.items():
        if name != "grpo":  # presets/one_step_off
            whole = merged({"schedule": {"preset": "one_step_off"}}, changes)
            yield Configuration(name=f"algorithms/{name}", changes=whole)
    for bound in reversed(ALGORITHM_BOUNDS):
        for algorithm in WITH_PRESET:
            name = stale_algorithm_name(algorithm, bound)
            if name.startswith("stale_algorithms/"):
                changes = merged({"schedule": bounded(bound)}, ALGORITHMS[algorithm])
                yield Configuration(name=name, changes=changes)
    for bound in reversed(STALENESS):
        for correction in reversed(list(CORRECTIONS) if bound else ON_POLICY):
            if f"staleness/{correction}/{bound}" not in TWICE:
                yield staleness_configuration(correction, bound)
    for name, changes in _MATRIX["rewards"].items():
        # It has 50 held-out tasks.
        yield Configuration(
            name=f"{SHOP}/{name}", changes=merged({"evaluation": {"tasks": 50}}, changes)
        )


def reference_of(part: str) -> str:
    """Name of the configuration with which those of a part are compared."""
    return SHOP_REFERENCE if part == SHOP else REFERENCE


def compared(part: str) -> list[str]:
    """Names of a part's configurations, and of the reference before them."""
    names = [one.name for one in configurations() if one.part == part]
    reference = reference_of(part)
    return names if reference in names else [reference, *names]


def label(name: str) -> str:
    """The name of a configuration in figures and tables."""
    return "sync GRPO" if name == REFERENCE else name.partition("/")[2]


def staleness_configuration(correction: str, bound: int) -> Configuration:
    """GRPO with this correction."""
    return Configuration(
        name=f"staleness/{correction}/{bound}",
        changes={"schedule": bounded(bound), "algorithm": GRPO | CORRECTIONS[correction]},
    )


def bounded(bound: int) -> dict[str, Any]:
    """A batch is the oldest groups, in the order of their prompts, and as many batches are
    open as the bound lets be: then nearly every group is as stale as it may be."""
    return {"preset": "sync", "max_staleness": bound, "batches_in_flight": bound + 1}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested keys with others over them."""
    whole = copy.deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
        whole[key] = merged(whole[key], value) if both else copy.deepcopy(value)
    return whole
