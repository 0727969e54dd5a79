"""The model of a chain of nodes: its arithmetic, and the runs that it was not made from."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.weight_fanout.model import FEW, MANY, Chain, Costs, at_size, chain_of, costs_of

BASELINE = Path(__file__).parents[2] / "benchmarks" / "baselines" / "weight_fanout.json"
COSTS = Costs(fixed_s=1.0, hop_s=0.25, cpu_s_per_gb=1.0, wire_share=0.5)


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    measured: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    return measured


def chain(nodes: int, **changes: Any) -> Chain:
    # A bucket takes 100 / (100 x 0.5) = 2 s on each wire.
    given = {"nbytes": 400.0, "bucket_bytes": 100.0, "wire": 100.0, "cores": 1.0}
    return Chain(nodes=nodes, **given | changes)


def test_one_node_takes_the_bytes_over_the_wire_and_what_a_version_always_takes() -> None:
    assert chain(1).seconds(COSTS) == 1.0 + 4 * 2.0


def test_each_further_node_adds_one_bucket_and_one_hop() -> None:
    assert chain(3).seconds(COSTS) == 1.0 + 4 * 2.0 + 2 * (2.0 + 0.25)


def test_a_relay_short_of_cores_is_slower_than_its_wire() -> None:
    slow = Costs(fixed_s=0.0, hop_s=0.0, cpu_s_per_gb=1e9 / 25, wire_share=1.0)
    assert chain(1).seconds(slow) == pytest.approx(400 / 25)
    assert chain(1, cores=4.0).seconds(slow) == pytest.approx(400 / 100)


def test_the_model_tells_the_runs_of_many_nodes_from_those_of_few(figures: dict[str, Any]) -> None:
    costs = costs_of(figures)
    few = chain_of(figures, FEW, figures["mbit_s"]["few"]).seconds(costs)
    assert few == pytest.approx(median(figures["few"]["seconds"]), rel=0.05), "made from it"
    many = chain_of(figures, MANY, figures["mbit_s"]["many"]).seconds(costs)
    assert many == pytest.approx(median(figures["many"]["seconds"]), rel=0.15), "not made from it"


def test_a_large_model_is_never_slower_on_the_faster_network(figures: dict[str, Any]) -> None:
    head, *rows = at_size(costs_of(figures))
    assert head == ["model", "nodes", "100 Gb/s", "400 Gb/s"]
    assert [row[:2] for row in rows] == [["14B", "4"], ["32B", "32"], ["70B", "64"]]
    for *_, slow, fast in rows:
        assert float(slow.removesuffix(" s")) >= float(fast.removesuffix(" s")) > 0
