"""The workers of an engine meet in a file that no folder holds."""

import os
import subprocess
import sys
from pathlib import Path

from services.rollout_server.engine.vllm_patches.executors import rendezvous_file

_RANK = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], world_size=2, rank=int(sys.argv[2]))
one = torch.ones(1)
dist.all_reduce(one)
dist.barrier(group=dist.new_group([0, 1]))
print(int(one), flush=True)
dist.destroy_process_group()
"""


def test_two_processes_meet_in_it_and_leave_no_file(tmp_path: Path) -> None:
    method = rendezvous_file()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, method, str(rank)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=240)[0] for rank in ranks] == ["2\n", "2\n"]
    assert os.listdir(tmp_path) == []
    os.close(int(method.rpartition("/")[2]))


_WORKER = """
import os, sys
from types import SimpleNamespace
from services.rollout_server.engine.vllm_patches import executors
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
os.environ["VLLM_DIST_IDENT"] = "15"
for _ in range(2):
    if os.fork() == 0:
        name = _CPUSHMDistributed.make_group_name(SimpleNamespace(unique_name="tp:0", ranks=[0, 1]))
        print(name, flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_share_memory_with_those_of_their_own_engine_alone() -> None:
    """Engines that start together have files of the same number, by which vLLM names it."""
    engines = [
        subprocess.run(
            [sys.executable, "-c", _WORKER], capture_output=True, text=True, timeout=240, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [len(set(names)) for names in engines] == [1, 1], "both workers of an engine"
    assert engines[0][0] != engines[1][0]
