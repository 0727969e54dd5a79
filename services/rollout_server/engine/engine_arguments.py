"""From our configuration to vLLM's arguments.

As a program it says whether vLLM takes those of a configuration, which it reads as JSON: its last
line is `null`, or the field, the value and the fix, as JSON.
"""

import json
import sys
from argparse import Namespace
from difflib import get_close_matches
from typing import Any, get_args

from vllm.config.lora import MaxLoRARanks
from vllm.config.weight_transfer import WeightTransferConfig

from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.vllm_patches.argument_parser import ArgumentParser
from services.rollout_server.quantisation import check_quantisation

_PACKAGE = "services.rollout_server"
_OURS = ("weight_transfer_config", "worker_extension_cls", "distributed_executor_backend")

_ONE_ONLY = (
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)
_REPEATING = ("enable_prefix_caching", "max_num_active_seqs")
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")
"""Ways of speculative decoding that draft without a model."""


def server_arguments(config: RolloutServerConfig) -> Namespace:
    """All arguments of vLLM's engine and OpenAI server, as its own parser would leave them.

    Raises:
        InvalidInput: `engine_args` names an argument that vLLM does not have or that the
            rollout server must set itself, or gives it a value that vLLM does not take.
    """
    parser = ArgumentParser()
    arguments = parser.defaults()
    for name, value in _chosen(config).items():
        setattr(arguments, name, value)
    for name, value in config.engine_args.items():
        if name not in parser.actions:
            (nearest,) = get_close_matches(name, parser.actions, n=1, cutoff=0.0) or [""]
            fix = f"vLLM has no such argument; the nearest is {nearest}."
            raise InvalidInput(f"engine_args.{name}", value, fix)
        _refuse_ours(name, value, config)
        try:
            setattr(arguments, name, parser.parsed(name, value))
        except ValueError as problem:
            raise InvalidInput(f"engine_args.{name}", value, str(problem)) from None
    return arguments


def _refuse_ours(name: str, value: Any, config: RolloutServerConfig) -> None:
    fix = ""
    if name in _OURS:
        fix = "The rollout server sets it itself."
    elif name in RolloutServerConfig.model_fields:
        fix = f"Set {name} itself, beside engine_args: it decides more than vLLM's argument."
    elif name in _ONE_ONLY and value != 1:
        fix = "Leave it at 1: weights reach the workers of tensor parallelism only."
    elif name in _REPEATING and config.determinism:
        fix = "`determinism: true` decides it: leave one of the two out."
    elif name == "enable_prefix_caching" and value and config.in_flight == "keep_stale":
        fix = "`in_flight: keep_stale` turns it off: new requests would meet keys of old weights."
    elif name == "lora_modules" and value:
        fix = "Its answers would have the policy's versions: serve it as one of router.backends."
    elif name == "enable_eplb" and value:
        fix = "Leave it out: versions are loaded to where the experts were at first."
    elif name == "speculative_config" and value and _drafts_with_weights(value):
        fix = f"Only {', '.join(_WITHOUT_WEIGHTS)} work: the weights of a draft are not delivered."
    if fix:
        raise InvalidInput(f"engine_args.{name}", value, fix)


def _drafts_with_weights(speculative: Any) -> bool:
    """Whether a model drafts; vLLM judges what is no dictionary, or names neither."""
    if not isinstance(speculative, dict):
        return False
    named = speculative.get("method") or speculative.get("model")
    return named is not None and str(named).strip("[]") not in _WITHOUT_WEIGHTS


def _chosen(config: RolloutServerConfig) -> dict[str, Any]:
    executor = "OneWorker" if config.tensor_parallel_size == 1 else "WorkerProcesses"
    chosen: dict[str, Any] = {
        "model": name_or_path(config.model),
        "served_model_name": [config.served_model_name, *config.served_model_aliases],
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
        "enable_prefix_caching": config.in_flight != "keep_stale" and not config.determinism,
        "enable_scale_out": True,
        "weight_transfer_config": WeightTransferConfig(backend="millrace_staged"),
        "worker_extension_cls": f"{_PACKAGE}.weights.weight_loader.WeightLoaderExtension",
        "distributed_executor_backend": f"{_PACKAGE}.engine.vllm_patches.executors.{executor}",
    }
    if config.determinism and config.device == "cpu":
        # Sequences that are computed together round otherwise than one alone, and vLLM has kernels
        # that do not for GPUs only.
        chosen["max_num_active_seqs"] = 1
    if config.tracing is not None:
        # Its spans go below those that the router names in the headers of a request.
        chosen["otlp_traces_endpoint"] = config.tracing.traces_url
    if config.lora_rank is not None:
        # The frozen weights do not travel, so here they are read.
        chosen |= {
            "load_format": "auto",
            "enable_lora": True,
            "max_loras": 1,
            # The least rank for which vLLM has kernels that the adapter fits into.
            "max_lora_rank": min(one for one in get_args(MaxLoRARanks) if one >= config.lora_rank),
        }
    if config.placement == "shared" and config.device == "cuda":
        chosen["enable_sleep_mode"] = True
    if config.device == "cpu":
        chosen["kv_cache_memory_bytes"] = int(config.kv_cache_gb * (1 << 30))
    return chosen


def main() -> None:
    """Check the configuration on standard input."""
    refused = None
    try:
        config = RolloutServerConfig.model_validate_json(sys.stdin.read())
        server_arguments(config)
        check_quantisation(config, {})
    except InvalidInput as problem:
        refused = (problem.field, problem.value, problem.fix)
    sys.stdout.write(f"\n{json.dumps(refused)}\n")


if __name__ == "__main__":
    main()
