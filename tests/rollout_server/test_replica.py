"""A whole replica, from its start to the death of its engine."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from services.rollout_server.config import RolloutServerConfig

from .conftest import build_model

PROMPT_S = 300.0
"""Neither Serve nor a bus that looks after its members is here to end it in its stead."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a replica in a process of its own saw; forking this one would copy its threads."""
    model = build_model(tmp_path_factory.mktemp("model"), tied=True)
    command = [sys.executable, str(Path(__file__).with_name("replica_process.py")), str(model)]
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TMPDIR": folder,
            "VLLM_RPC_BASE_PATH": folder,
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_cpu_engine_is_a_fork_of_its_replica(seen: dict[str, Any]) -> None:
    assert seen["start_method"] == "fork"
    assert seen["parent_is_replica"]
    assert seen["memory_inherited"], "the engine imported everything again"


def test_an_engine_needs_no_socket_file_once_it_is_up(seen: dict[str, Any]) -> None:
    assert seen["sockets_left"] == []
    assert seen["engine_answers"]


def test_a_replica_whose_engine_dies_leaves_the_bus_and_ends_at_once(seen: dict[str, Any]) -> None:
    assert seen["left_after_s"] < PROMPT_S
    assert seen["ended_after_s"] < PROMPT_S
    assert seen["children_left"] == 0


def test_serve_is_told_of_a_dead_engine_in_an_error_that_it_loads_without_vllm(
    seen: dict[str, Any],
) -> None:
    kind, text = seen["illness"]
    assert kind == "RuntimeError"
    assert text.startswith("EngineDeadError: ")


def test_the_bus_is_told_how_long_a_commit_may_take(seen: dict[str, Any]) -> None:
    each_step_s = RolloutServerConfig(model="m").commit_timeout_s
    assert seen["commit_timeout_s"] > 3 * each_step_s, "pausing, loading and resuming"
