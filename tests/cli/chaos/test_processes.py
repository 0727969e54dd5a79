"""Which processes below a raylet are which part of the cluster, by the titles that they have."""

import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from millrace_tools.chaos.processes import own_raylet, target_processes
from millrace_tools.chaos.script import Target

# What `ps` shows of a cluster, each with what is below it; all wait for the same input to end.
TREE = """
title() { exec -a "$1" sleep 600; }
above() { exec -a "$1" bash -c "(exec -a '$2' sleep 600) & exec -a '$1' sleep 600"; }
(above ray::ServeReplica:rollout_server:rollout_server ray::ServeReplica:rollout_server:a.b) &
(above ray::ServeReplica:reward_service:reward_service.score "bwrap --unshare-net") &
(title ray::ServeReplica:orchestrator:orchestrator) &
(title ray::TrainerRank.train) &
(title ray::WeightBusActor) &
(title ray::IDLE) &
wait
"""
EXPECTED = {
    Target.RAYLET,
    Target.REPLICA,
    Target.ENGINE,
    Target.REWARD,
    Target.GRADER,
    Target.ORCHESTRATOR,
    Target.RANK,
    Target.BUS,
}


@pytest.fixture
def raylet() -> Iterator[int]:
    with subprocess.Popen(["bash", "-c", TREE]) as root:
        try:
            yield root.pid
        finally:
            for process in psutil.Process(root.pid).children(recursive=True):
                process.kill()
            root.kill()


def test_every_part_of_a_cluster_is_found_once_and_nothing_else(raylet: int) -> None:
    deadline = time.monotonic() + 300
    while {one.target for one in target_processes(raylet)} != EXPECTED:
        assert time.monotonic() < deadline, target_processes(raylet)
        time.sleep(0.05)
    found = {one.target: one for one in target_processes(raylet)}
    assert len(found) == len(target_processes(raylet))
    (engine,) = found[Target.REPLICA].descendants
    assert engine == found[Target.ENGINE].id
    assert found[Target.RAYLET].descendants == ()  # a frozen raylet is not a frozen node
    grader = psutil.Process(found[Target.GRADER].id.pid)
    assert grader.cmdline()[0].startswith("bwrap")


def test_outside_a_ray_worker_there_is_no_raylet_to_act_below() -> None:
    with pytest.raises(RuntimeError, match="not a Ray worker"):
        own_raylet()
