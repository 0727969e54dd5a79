"""From our configuration to vLLM's arguments.

As a program it says whether vLLM takes those of a configuration, which it reads as JSON: its last
line is `null`, or the field, the value and the fix, as JSON.
"""

import json
import sys
from argparse import Action, ArgumentTypeError, BooleanOptionalAction, Namespace
from difflib import get_close_matches
from typing import Any, NoReturn, get_args

from vllm.config.lora import MaxLoRARanks
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.rollout_server.config import RolloutServerConfig

_PACKAGE = "services.rollout_server"
_OURS = ("weight_transfer_config", "worker_extension_cls", "distributed_executor_backend")

_ONE_ONLY = (
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)


def server_arguments(config: RolloutServerConfig) -> Namespace:
    """All arguments of vLLM's engine and OpenAI server, as its own parser would leave them.

    Raises:
        InvalidInput: `engine_args` names an argument that vLLM does not have or that the
            rollout server must set itself, or gives it a value that vLLM does not take.
    """
    parser = make_arg_parser(_Parser(add_help=False))  # type: ignore[no-untyped-call]
    actions = {action.dest: action for action in parser._actions if action.option_strings}
    arguments: Namespace = parser.parse_args([])
    for name, value in _chosen(config).items():
        setattr(arguments, name, value)
    for name, value in config.engine_args.items():
        if name not in actions:
            raise InvalidInput(f"engine_args.{name}", value, _nearest(name, list(actions)))
        _refuse_ours(name, value)
        setattr(arguments, name, _parsed(parser, actions[name], value))
    return arguments


def _refuse_ours(name: str, value: Any) -> None:
    fix = ""
    if name in _OURS:
        fix = "The rollout server sets it itself."
    elif name in RolloutServerConfig.model_fields:
        fix = f"Set {name} itself, beside engine_args: it decides more than vLLM's argument."
    elif name in _ONE_ONLY and value != 1:
        fix = "Leave it at 1: weights reach the workers of tensor parallelism only."
    if fix:
        raise InvalidInput(f"engine_args.{name}", value, fix)


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, which ends the process where it does not like an argument."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parsed(parser: Any, action: Action, value: Any) -> Any:
    """The value as vLLM's parser would have it from a command line."""
    option = action.option_strings[0]
    if value is None:
        return None
    try:
        if action.nargs == 0 or isinstance(action, BooleanOptionalAction):
            if not isinstance(value, bool):
                raise ValueError("Write true or false.")
            return value
        if isinstance(value, list) and action.nargs is not None:
            line = [option, *map(_word, value)]
        else:
            line = [f"{option}={_word(value)}"]
        return getattr(parser.parse_args(line), action.dest)
    except (ValueError, ArgumentTypeError) as error:
        problem = " ".join(str(error).partition("[type=")[0].split())
        raise InvalidInput(f"engine_args.{action.dest}", value, problem) from None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _nearest(name: str, known: list[str]) -> str:
    (nearest,) = get_close_matches(name, known, n=1, cutoff=0.0) or [""]
    return f"vLLM has no such argument; the nearest is {nearest}."


def engine_arguments(arguments: Namespace) -> AsyncEngineArgs:
    """The engine's part of `server_arguments`."""
    return AsyncEngineArgs.from_cli_args(arguments)


def _room_for(rank: int) -> int:
    """The least of the ranks for which vLLM has kernels that has room for `rank`."""
    return min(room for room in get_args(MaxLoRARanks) if room >= rank)


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
        "worker_extension_cls": f"{_PACKAGE}.weights.weight_receiver.WeightReceiverExtension",
        "distributed_executor_backend": f"{_PACKAGE}.engine.engine_process.{executor}",
    }
    if config.tracing is not None:
        # Its spans go below those that the router names in the headers of a request.
        chosen["otlp_traces_endpoint"] = config.tracing.traces_url
    if config.lora_rank is not None:
        # The frozen weights do not travel, so here they are read.
        chosen |= {
            "load_format": "auto",
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": _room_for(config.lora_rank),
        }
    if config.device == "cpu":
        chosen["kv_cache_memory_bytes"] = int(config.kv_cache_gb * (1 << 30))
    return chosen


def main() -> None:
    """Check the configuration on standard input."""
    refused = None
    try:
        server_arguments(RolloutServerConfig.model_validate_json(sys.stdin.read()))
    except InvalidInput as problem:
        refused = (problem.field, problem.value, problem.fix)
    sys.stdout.write(f"\n{json.dumps(refused)}\n")


if __name__ == "__main__":
    main()
