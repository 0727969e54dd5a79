"""What each stage makes of what it measured; the services are those of tests/cluster."""

import json
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from millrace_tools.accept import services
from millrace_tools.accept.answers import Answer
from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure, Hardware
from millrace_tools.accept.stage import NotTried
from millrace_tools.accept.stages import bandwidths, learning, sleep, train_step, versions
from millrace_tools.accept.stages.node_link import NodeLink
from millrace_tools.accept.stages.weight_push import Pushes, figures_of, problem_of
from millrace_tools.capacity.demands import total
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.wiring import arguments_of
from services.protocol.run.orchestrator import LedgerCounts, RunState, RunStatus, RunSummary
from services.protocol.weights.version_ledger import VersionOutcome, VersionRecord
from services.protocol.yaml_text import load_yaml

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    machine = Hardware(cpu="a processor", cores=2, memory_gib=8.0, system="Linux 6.1")
    return Bench(
        folder=tmp_path, quick=True, address=None, hardware=machine, console=Console(quiet=True)
    )


@pytest.fixture
def laptop(tmp_path: Path) -> Any:
    """The deployment file of a laptop, with a model that is there."""
    content = load_yaml(ROOT / "deploy" / "laptop.yaml")
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    own = {"model": str(tmp_path)}
    return services.changed(content, {"trainer": own, "rollout_server": own})


def values(figures: tuple[Figure, ...]) -> dict[str, float | str]:
    return {one.name: one.value for one in figures}


def test_bandwidths_of_disk_and_memory_are_measured_and_leave_no_file(bench: Bench) -> None:
    found = bandwidths.disk(bench, Deadline(300))
    assert min(values(found.figures).values()) > 0
    assert list(bench.folder.iterdir()) == []
    found = bandwidths.host_memory(bench, Deadline(300))
    assert values(found.figures)["copy"] > 0


def test_a_node_sends_another_one_every_byte() -> None:
    sender, receiver = NodeLink(), NodeLink()
    port, size = receiver.listen(), 9 * MIB + 5
    sending = threading.Thread(target=sender.send, args=("127.0.0.1", port, size))
    sending.start()
    assert receiver.receive(size) > 0
    sending.join(300)


def test_a_node_that_stops_sending_is_an_error_and_no_wait() -> None:
    sender, receiver = NodeLink(), NodeLink()
    port = receiver.listen()
    sending = threading.Thread(target=sender.send, args=("127.0.0.1", port, 100))
    sending.start()
    with pytest.raises(ConnectionError, match="23 bytes to go"):
        receiver.receive(123)
    sending.join(300)


def test_nodes_need_the_address_of_their_cluster(bench: Bench) -> None:
    with pytest.raises(NotTried, match="no --address"):
        bandwidths.node_to_node(bench, Deadline(60))


def test_the_machine_has_neither_names_nor_paths(bench: Bench) -> None:
    found = versions.hardware_here()
    assert found.cores >= 1
    assert found.cores <= psutil.cpu_count()
    assert set(type(found).model_fields) == {
        *("cpu", "cores", "memory_gib", "gpus", "gpu_gib", "driver", "system")
    }


STEP = {
    "loss": 0.5,
    "loss_float64": 0.5,
    "grad_norm": 2.0,
    "grad_norm_float64": 2.0,
    "logprob_gap": 1e-7,
    "logprob_gap_after": 1e-6,
    "tokens_per_s": 1000.0,
    "model_tflops": 0.01,
    "mfu": None,
}
WRONG_STEPS = {
    "loss": ({"loss": 0.5001}, "loss is 0.0001 from float64, more than 1e-05"),
    "gradient": ({"grad_norm": 2.01}, "grad_norm is 0.005 from float64, more than 0.001"),
    "no number": ({"logprob_gap": float("nan")}, "logprobs is nan from float64"),
    "update": ({"logprob_gap_after": 1e-3}, "logprobs after is 0.001 from float64"),
    "memory": (
        {"most_gib": 12.0, "sizing_gib": 10.0},
        "a step takes 12.00 GiB, and the sizing says 10.00",
    ),
}


@pytest.mark.parametrize("name", [None, *WRONG_STEPS])
def test_a_train_step_that_is_off_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    change, problem = WRONG_STEPS[name] if name else ({}, "")
    monkeypatch.setattr(train_step, "measured_by", lambda *_, **__: STEP | change)
    found = train_step.train_step(bench, Deadline(60))
    assert found.problem.startswith(problem)
    assert bool(found.problem) == bool(name)


SPANS = [[3, 0, 2, "a"], [4, 2, 6, "b"]]
CROSSING = Answer(
    arrivals_s=(0.0, 0.0, 0.1, 0.2, 1.2, 1.3),
    trajectory={"token_ids": [1, 2, 3, 4, 5, 6], "logprobs": [-1.0] * 6, "spans": SPANS},
)


def test_the_gap_of_an_answer_is_told_in_tokens_at_its_own_pace() -> None:
    assert CROSSING.longest_gap_s == pytest.approx(1.0)
    assert CROSSING.gap_tokens == pytest.approx(20.0)
    assert (CROSSING.versions, CROSSING.replicas) == ({3, 4}, {"a", "b"})


def record(version: int, digest: str, *errors: str | None) -> VersionRecord:
    outcomes = tuple(
        VersionOutcome(replica_id="r", at=0.0, error=error, stage_s=0.2, paused_s=0.1)
        for error in errors
    )
    good = sum(error is None for error in errors)
    return VersionRecord(
        version=version,
        train_step=version,
        digest=digest,
        model="m",
        base=None,
        published_at=0.0,
        commits=good,
        failures=len(errors) - good,
        outcomes=outcomes,
    )


def status(version: int = 2, **changes) -> RunStatus:
    fields = {
        "run_id": "r",
        "state": RunState.FINISHED,
        "run_dir": "r",
        "step": 2,
        "steps": 2,
        "reward": 0.5,
        "heldout_pass_rate": 0.5,
        "policy_version": version,
        "staleness": 0.0,
        "tokens_per_second": 1.0,
        "live_replicas": 2,
        "ledger": LedgerCounts(),
        "elapsed_s": 1.0,
        "detail": "",
    }
    return RunStatus(**fields | changes)


PUSHES = {
    "": [record(1, "a", None, None), record(2, "b", None, None)],
    "version 1: stage: digest": [
        record(1, "a", "stage: digest of bucket 0", None, None),
        record(2, "b", None, None),
    ],
    "1 of 2 engines committed version 2": [record(1, "a", None, None), record(2, "b", None)],
    "two versions have the same digest": [
        record(1, "a", None, None),
        record(2, "a", None, None),
    ],
    "the weight bus does not know": [record(1, "a", None, None)],
}


@pytest.mark.parametrize("problem", PUSHES)
def test_a_push_that_is_not_whole_is_found(problem: str) -> None:
    done = Pushes(status=status(), answers=[CROSSING], records=PUSHES[problem])
    found = problem_of(done, replicas=2)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_figures_of_pushes_are_medians_and_count_digests() -> None:
    done = Pushes(status=status(), answers=[CROSSING], records=PUSHES[""])
    assert values(figures_of(done)) == pytest.approx(
        {"versions": 2, "digests": 2, "stage": 0.2, "paused": 0.1, "gap": 20.0}
    )


def summary(before: float | None, after: float | None, **changes) -> RunSummary:
    fields = {
        "run_id": "r",
        "heldout_pass_rate_before": before,
        "heldout_pass_rate_after": after,
        "train_steps": 30,
        "wall_s": 60.0,
        "weight_pushes": 30,
        "policy_version": 30,
        "seed": 0,
        "ledger": LedgerCounts(),
    }
    return RunSummary(**fields | changes)


RUNS = {
    "": status(summary=summary(0.2, 0.6)),
    "held-out pass rate 60% before and 60% after": status(summary=summary(0.6, 0.6)),
    "the held-out pass rate was not measured": status(summary=summary(0.6, None)),
    "sample groups failed: {'deadline': 2}": status(
        summary=summary(0.2, 0.6, failures={"deadline": 2})
    ),
    "the ledger does not balance": status(
        summary=summary(0.2, 0.6), ledger=LedgerCounts(admitted=3, trained=2)
    ),
}


@pytest.mark.parametrize("problem", RUNS)
def test_a_run_that_did_not_learn_or_lost_something_is_found(problem: str) -> None:
    found = learning.problem_of(RUNS[problem], learns=True)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_a_short_run_need_not_learn() -> None:
    assert learning.problem_of(status(summary=summary(0.6, 0.5)), learns=False) == ""


@pytest.mark.parametrize(
    ("given_back", "awake", "problem"),
    [
        ([100.0, 90.0], [500.0, 510.0], ""),
        ([100.0, 0.0], [500.0, 500.0], "an engine that slept gave back 0 MiB"),
        ([100.0, 90.0], [500.0, 600.0], "memory of the engine grew from 500 to 600 MiB"),
    ],
)
def test_sleep_must_give_memory_back_and_take_no_more_each_time(
    given_back: list[float], awake: list[float], problem: str
) -> None:
    assert sleep._problem(given_back, awake) == problem


@pytest.mark.parametrize(
    ("gpus", "trainer", "engines"),
    [(0, "cpu", 2), (1, "cpu", 1), (2, "cuda", 1), (3, "cuda", 2), (8, "cuda", 2)],
)
def test_the_deployment_for_each_number_of_gpus_is_one_that_check_takes(
    laptop: Any, gpus: int, trainer: str, engines: int
) -> None:
    content = services.for_machine(laptop, gpus)
    arguments = arguments_of(content)
    assert arguments["trainer"].get("device", "cpu") == trainer
    assert arguments["rollout_server"]["replicas"] == engines
    assert arguments["rollout_server"].get("device", "cpu") == ("cuda" if gpus else "cpu")
    found = Deployment.check(content, source="deployment")
    asked = sum(one.count * total(one.bundles).get("GPU", 0) for one in found.demands)
    assert asked <= gpus


def test_arguments_that_the_check_refuses_are_not_tried(laptop: Any) -> None:
    with pytest.raises(NotTried, match="no_such_key"):
        services.check(services.changed(laptop, {"trainer": {"no_such_key": 1}}))
    services.check(laptop)
