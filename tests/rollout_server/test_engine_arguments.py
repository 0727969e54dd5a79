"""Any argument of vLLM's engine and server can be set in the deployment file."""

from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from millrace_tools.deploy.engine_arguments import check_engine_arguments
from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_arguments import server_arguments
from services.rollout_server.engine.engine_environment import environment


def arguments(**engine_args: Any) -> Any:
    return server_arguments(RolloutServerConfig(model="m", engine_args=engine_args))


def test_values_become_what_vllms_own_parser_makes_of_them() -> None:
    made = arguments(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
        hf_overrides={"rope_theta": 10000},
        allowed_origins=["http://one", "http://two"],
        chat_template=None,
    )
    assert made.enable_auto_tool_choice
    assert made.structured_outputs_config.disable_any_whitespace
    assert made.hf_overrides == {"rope_theta": 10000}
    assert made.allowed_origins == ["http://one", "http://two"]
    engine = AsyncEngineArgs.from_cli_args(made)
    assert (engine.max_num_batched_tokens, engine.enable_prefix_caching) == (4096, False)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("max_num_batched_token", 16, "the nearest is max_num_batched_tokens"),
        ("tool_parser", "hermes", "the nearest is tool_parser_plugin|tool_call_parser"),
        ("max_num_batched_tokens", "many", "invalid"),
        ("tensor_parallel_size", 2, "beside engine_args"),
        ("pipeline_parallel_size", 2, "Leave it at 1"),
        ("enable_prefix_caching", "yes", "true or false"),
        ("structured_outputs_config", {"no_such_field": 1}, "no_such_field"),
        ("kv_cache_dtype", "int1", "invalid choice"),
        ("worker_extension_cls", "x.Y", "sets it itself"),
        ("lora_modules", ["other=/an/adapter"], "as one of router.backends"),
        ("enable_eplb", True, "where the experts were at first"),
        ("speculative_config", {"method": "mtp"}, "a draft are not delivered"),
        ("speculative_config", {"model": "/draft", "num_speculative_tokens": 3}, "Only ngram"),
    ],
)
def test_what_vllm_does_not_take_is_refused_with_field_value_and_fix(
    name: str, value: Any, fix: str
) -> None:
    with pytest.raises(InvalidInput, match=fix) as caught:
        arguments(**{name: value})
    assert (caught.value.field, caught.value.value) == (f"engine_args.{name}", value)


def test_drafts_that_need_no_weights_are_taken() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    assert arguments(speculative_config=ngram).speculative_config == ngram


def test_stale_keys_and_a_prefix_cache_are_refused_together() -> None:
    asked = {"engine_args": {"enable_prefix_caching": True}, "in_flight": "keep_stale"}
    with pytest.raises(InvalidInput, match="turns it off"):
        server_arguments(RolloutServerConfig(model="m", **asked))


def test_a_nodes_environment_cannot_turn_development_endpoints_on() -> None:
    assert environment(RolloutServerConfig(model="m"))["VLLM_SERVER_DEV_MODE"] == "0"


def test_a_check_of_a_deployment_file_asks_vllm() -> None:
    config = RolloutServerConfig(model="m", engine_args={"kv_cache_type": "auto"})
    with pytest.raises(InvalidInput) as refused:
        check_engine_arguments({"rollout_server": config}, source="deploy.yaml")
    assert refused.value.field == "deploy.yaml: rollout_server.args.engine_args.kv_cache_type"
    assert refused.value.fix == "vLLM has no such argument; the nearest is kv_cache_dtype."


def test_a_check_refuses_a_quantisation_into_which_nothing_can_be_loaded() -> None:
    config = RolloutServerConfig(model="m", dtype="bfloat16", engine_args={"quantization": "awq"})
    with pytest.raises(InvalidInput, match="use one of fp8"):
        check_engine_arguments({"rollout_server": config}, source="deploy.yaml")


def test_a_check_without_engine_arguments_loads_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("subprocess.run")
    config = RolloutServerConfig(model="m")
    assert check_engine_arguments({"rollout_server": config}, source="deploy.yaml")


def test_the_check_takes_what_vllm_takes() -> None:
    config = RolloutServerConfig(model="m", engine_args={"kv_cache_dtype": "auto"})
    scaled = config.model_copy(update={"replicas": 12, "max_replicas": 2})
    assert check_engine_arguments({"rollout_server": scaled}, source="deploy.yaml")


def test_an_engine_that_repeats_its_answers_computes_each_alone() -> None:
    config = RolloutServerConfig(model="m", determinism=True, max_replicas=2)
    made = server_arguments(config)
    engine = AsyncEngineArgs.from_cli_args(made)
    assert (engine.max_num_active_seqs, engine.enable_prefix_caching) == (1, False)
    assert environment(config)["OMP_NUM_THREADS"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in environment(config)
    on_gpu = RolloutServerConfig(model="m", determinism=True, device="cuda")
    made = server_arguments(on_gpu)
    assert (made.max_num_active_seqs, made.enable_prefix_caching) == (None, False)
    assert environment(on_gpu)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in environment(RolloutServerConfig(model="m", device="cuda"))


@pytest.mark.parametrize(
    ("name", "value"), [("enable_prefix_caching", True), ("max_num_active_seqs", 8)]
)
def test_an_argument_by_which_answers_would_not_repeat_is_refused(name: str, value: Any) -> None:
    config = RolloutServerConfig(model="m", determinism=True, engine_args={name: value})
    with pytest.raises(InvalidInput, match="`determinism: true` decides it"):
        server_arguments(config)
