"""From our configuration to vLLM's arguments."""

from argparse import Namespace
from typing import Any

from vllm.config.weight_transfer import WeightTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.rollout_server.config import RolloutServerConfig

_PACKAGE = "services.rollout_server"
_OURS = ("weight_transfer_config", "worker_extension_cls", "distributed_executor_backend")


def server_arguments(config: RolloutServerConfig) -> Namespace:
    """All arguments of vLLM's engine and OpenAI server, as its own parser would leave them.

    Raises:
        InvalidInput: `engine_args` names an argument that vLLM does not have or that the
            rollout server must set itself.
    """
    arguments: Namespace = make_arg_parser(
        FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    ).parse_args([])
    for name, value in config.engine_args.items():
        if not hasattr(arguments, name):
            raise InvalidInput(f"engine_args.{name}", value, "vLLM has no such argument.")
        if name in _OURS:
            raise InvalidInput(f"engine_args.{name}", value, "The rollout server sets it itself.")
    for name, value in (_chosen(config) | config.engine_args).items():
        setattr(arguments, name, value)
    return arguments


def engine_arguments(arguments: Namespace) -> AsyncEngineArgs:
    """The engine's part of `server_arguments`."""
    return AsyncEngineArgs.from_cli_args(arguments)


def _chosen(config: RolloutServerConfig) -> dict[str, Any]:
    executor = "OneWorker" if config.tensor_parallel_size == 1 else "WorkerProcesses"
    chosen: dict[str, Any] = {
        "model": name_or_path(config.model),
        "served_model_name": [config.served_model_name],
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "tensor_parallel_size": config.tensor_parallel_size,
        "enforce_eager": config.enforce_eager,
        "seed": config.seed,
        # The bus delivers the weights before the first lease; reading a checkpoint would
        # only cost time.
        "load_format": "dummy",
        # Behaviour logprobs are those of the distribution that was sampled from.
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": config.in_flight != "keep_stale",
        "enable_scale_out": True,
        "weight_transfer_config": WeightTransferConfig(backend="millrace_staged"),
        "worker_extension_cls": f"{_PACKAGE}.weight_receiver.WeightReceiverExtension",
        "distributed_executor_backend": f"{_PACKAGE}.engine_process.{executor}",
    }
    if config.device == "cpu":
        chosen["kv_cache_memory_bytes"] = int(config.kv_cache_gb * (1 << 30))
    return chosen
