"""Graders come while work queues up and leave when it is done, and no answer is lost over it."""

import json
import threading
import time

import httpx
import pytest
from ray import serve
from rich.console import Console

from millrace_tools.capacity.machine import free_port
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.protocol.yaml_text import load_yaml

READY_S, SCALE_S, ANSWER_S = 120.0, 400.0, 900.0
CALLERS, ANSWERS = 3, 15
CPU_S = 1.0
"""An answer without end takes this much; all of them are 45 seconds of one core."""


def _running() -> int:
    deployment = serve.status().applications["reward_service"].deployments["reward_service"]
    return sum(n for state, n in deployment.replica_states.items() if state == "RUNNING")


def _wait_for(replicas: int) -> None:
    deadline = time.monotonic() + SCALE_S
    while _running() != replicas:
        assert time.monotonic() < deadline, f"not {replicas} graders in {SCALE_S:g} s"
        time.sleep(0.2)


def _grade(url: str, caller: int, verdicts: list[str]) -> None:
    grader = {
        "kind": "code",
        "tests": [{"stdin": "1", "expected": "1"}],
        "limits": {"cpu_s": CPU_S},
    }
    jobs = [
        {
            "job_id": f"{caller}-{n}",
            "completion": f"which = {caller, n}\nwhile True: pass",
            "grader": grader,
        }
        for n in range(ANSWERS)
    ]
    request = {"jobs": jobs}
    with httpx.stream("POST", f"{url}/v1/grade", json=request, timeout=ANSWER_S) as lines:
        lines.raise_for_status()
        verdicts += [json.loads(line)["verdict"] for line in lines.iter_lines()]


@pytest.mark.timeout(1200)
def test_graders_come_while_work_queues_up_and_leave_when_it_is_done() -> None:
    content = load_yaml("deploy/reward.yaml")
    content["http_options"]["port"] = port = free_port()
    content["applications"][0]["args"] |= {
        "slots": 1,
        "num_cpus": 1,
        "max_replicas": 2,
        "answer_deadline_s": ANSWER_S,
        "queue_wait_s": ANSWER_S / 2,
    }
    verdicts: list[str] = []
    with PrivateCluster(num_cpus=2) as cluster:
        cluster.start()
        cluster.deploy(content, Console(quiet=True), timeout_s=READY_S)
        assert _running() == 1
        given = [(f"http://127.0.0.1:{port}", caller, verdicts) for caller in range(CALLERS)]
        callers = [threading.Thread(target=_grade, args=one) for one in given]
        began = time.monotonic()
        for caller in callers:
            caller.start()
        _wait_for(2)
        print(f"a second grader after {time.monotonic() - began:.1f} s")
        for caller in callers:
            caller.join(ANSWER_S)
        assert verdicts == ["time_limit"] * CALLERS * ANSWERS
        done = time.monotonic()
        _wait_for(1)
        print(f"one again {time.monotonic() - done:.1f} s after the last answer")
