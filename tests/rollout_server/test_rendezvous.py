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
    os.close(file_of(method))


def file_of(method: str) -> int:
    return int(method.rpartition("/")[2].partition("?")[0])


def test_engines_that_start_together_share_no_memory_with_each_other() -> None:
    """vLLM's workers on CPUs share memory under the end of this name."""
    methods = []
    for _ in range(2):  # in two processes the files have the same number, as here
        methods.append(rendezvous_file())
        os.close(file_of(methods[-1]))
    assert file_of(methods[0]) == file_of(methods[1])
    first, second = (os.path.basename(one.removeprefix("file://")) for one in methods)
    assert first != second
