"""Start a CPU engine's process as a fork: a patch of how vLLM starts processes.

vLLM spawns the engine core on CPU (to bind OpenMP threads) and inside every Ray actor (to be
safe with CUDA). A spawned process imports vLLM and torch all over again, which is most of
an engine's start-up time. Neither reason holds here: threads are not bound, there is no
CUDA, and the engine core makes no use of the Ray connection that it inherits.
"""

import os

from vllm.utils import system_utils

_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def fork_engine_processes() -> None:
    """From now on vLLM forks in this process; call it after the engine's configuration is
    made, which is when vLLM's CPU platform asks for spawning."""
    system_utils._maybe_force_spawn = lambda: None  # the check that turns forking off
    os.environ[_METHOD] = "fork"
