"""A deployment file for GPUs with the values that a small machine without GPUs can hold.

The structure stays: the same applications, places, replicas' kind, routes, ports and deadlines.
"""

import copy
from collections.abc import Mapping
from typing import Any

from millrace_tools.deploy.wiring import arguments_of

SERVED = "tiny_code"
_OF_GPUS = ("device", "dtype", "gpus_per_rank", "activation_checkpointing", "enforce_eager")
_SMALL: Mapping[str, Mapping[str, Any]] = {
    "reward_service": {"slots": 1, "num_cpus": 0.5},
    "trainer": {
        "world_size": 2,
        "ranks_per_node": 2,
        "micro_batch_tokens": 8192,
        "bucket_mb": 64,
        "rank_num_cpus": 0.5,
    },
    "rollout_server": {
        "served_model_name": SERVED,
        "replicas": 2,
        "tensor_parallel_size": 1,
        "max_model_len": 256,
        "kv_cache_gb": 0.25,
        "num_cpus": 0.5,
    },
    "router": {"num_cpus": 0.1},
    "orchestrator": {"num_cpus": 0.1},
}
"""Arguments by service; the others stay as the file has them."""


def cpu_twin(content: Any, model: str) -> dict[str, Any]:
    """The content of a deployment file, for CPUs and the example's model in this folder."""
    twin: dict[str, Any] = copy.deepcopy(content)
    for service, args in arguments_of(twin).items():
        if "model" in args:
            args["model"] = model
        for key in _OF_GPUS:
            args.pop(key, None)
        args |= _SMALL.get(service, {})
        # Both engines on one node would leave nothing to carry to the other.
    return twin
