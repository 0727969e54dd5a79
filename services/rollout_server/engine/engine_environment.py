"""Environment variables that vLLM reads; no import of vllm here, because they must come first."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.vllm_patches.numa_library import PLUGIN

_SOCKETS = "VLLM_RPC_BASE_PATH"  # vLLM reads it whenever it makes a socket


def environment(config: RolloutServerConfig) -> dict[str, str]:
    """Variables by which vLLM and its libraries take settings that have no argument.

    They must be in place before vLLM is imported; its processes inherit them.
    """
    variables = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        # No plugin of the environment is wanted but our own.
        "VLLM_PLUGINS": PLUGIN if config.device == "cpu" else "",
        # Else what a node's environment says would open the engine to everybody.
        "VLLM_SERVER_DEV_MODE": "0",
        "TOKENIZERS_PARALLELISM": "false",
        # Fresh memory for every version: with 4 KiB pages, touching it first would cost
        # several times the copy.
        "THP_MEM_ALLOC_ENABLE": "1",
    }
    if config.tracing is not None:
        variables["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
        variables["OTEL_SERVICE_NAME"] = "millrace.rollout_server"
    if config.device == "cpu":
        # One core is left to all else on the machine: threads of a step wait for each other, and
        # all of them for one that has no core. On two cores that made the demo's engine use twice
        # the time.
        cores = len(os.sched_getaffinity(0)) - 1
        threads = max(1, cores // (config.most_replicas * config.tensor_parallel_size))
        if config.determinism:
            threads = 1  # else sums would depend on the machine and the number of replicas
        variables |= {
            "OMP_NUM_THREADS": str(threads),
            # Binding threads to cores assumes that the engine is alone on the machine.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    elif config.determinism:
        variables["VLLM_BATCH_INVARIANT"] = "1"
    if config.enforce_eager:
        # Without it the logprob kernel alone is still compiled at the first request: 2.5 s,
        # and a C++ compiler that an ordinary machine may not have.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


@contextmanager
def engine_sockets() -> Iterator[None]:
    """Start the engine inside; its socket files are gone afterwards.

    vLLM makes them in the temporary folder and never removes them. A connected socket needs its
    file no more, so a replica that is killed later leaves none behind.
    """
    before = os.environ.get(_SOCKETS)
    # A short name: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="vllm-", dir=before) as folder:
        os.environ[_SOCKETS] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SOCKETS]
            else:
                os.environ[_SOCKETS] = before
