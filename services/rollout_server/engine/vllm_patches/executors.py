"""Executors that tie the engine's processes to the replica and start no more of them than needed.

vLLM's engine core runs in a process of its own and does not notice when the process that
started it is killed; its workers only notice the engine core. Here the engine core asks the
kernel to be killed with its parent, and the workers follow it.

On CPU vLLM replaces its in-process executor by one that starts a worker process even for a
single worker, so that it can bind OpenMP threads. Naming an executor of our own keeps the
worker inside the engine core: one process less to import vLLM, one hop less per step.

Workers meet in a file that vLLM makes in the temporary folder, and that stays there when they are
killed. Here it has no name in any folder and ends with the engine core.
"""

import os
from pathlib import Path
from typing import Any

from vllm.distributed.device_communicators import cpu_communicator
from vllm.v1.executor import multiproc_executor, uniproc_executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from services.rollout_server.engine.parent_death import die_with_parent


def rendezvous_file() -> str:
    """Where workers meet, as torch names it: a file in memory that this process holds open."""
    file = os.memfd_create("rendezvous")
    return f"file:///proc/{os.getpid()}/fd/{file}"


multiproc_executor.get_file_store_init_method = rendezvous_file
uniproc_executor.get_file_store_init_method = rendezvous_file

_vllms_name = cpu_communicator._CPUSHMDistributed.make_group_name


def shared_memory_name(communicator: Any) -> str:
    """Name of the memory that tensor-parallel CPU workers share, with their engine's process in it.

    vLLM's own is the last part of the rendezvous: the file's number, which is the same in engines
    that start together on one node. Their workers would take each other's memory for theirs.
    """
    return f"{os.getppid()}-{_vllms_name(communicator)}"


cpu_communicator._CPUSHMDistributed.make_group_name = staticmethod(shared_memory_name)


def unlink_shared_memory() -> None:
    """Take the name from the memory that tensor-parallel CPU workers share."""
    for segment in Path("/dev/shm").glob(f"{os.getppid()}-*-cpushm_*"):
        segment.unlink(missing_ok=True)


class OneWorker(UniProcExecutor):
    """One worker, inside the engine core's process."""

    def _init_executor(self) -> None:
        die_with_parent()
        super()._init_executor()


class WorkerProcesses(MultiprocExecutor):
    """A process per worker, for tensor parallelism."""

    def _init_executor(self) -> None:
        die_with_parent()
        super()._init_executor()
        # Every worker has mapped the memory that they share; with its name gone, nothing is
        # left behind however they end.
        self.collective_rpc("unlink_shared_memory")
