"""What is patched in vLLM is still there and still does what the patch expects."""

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.outputs import CompletionOutput
from vllm.utils import system_utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestState
from vllm.v1.executor import multiproc_executor, uniproc_executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_arguments import server_arguments
from services.rollout_server.engine.vllm_patches import weight_updates
from services.rollout_server.engine.vllm_patches.argument_parser import ArgumentParser
from services.rollout_server.engine.vllm_patches.version_spans import put_spans_on_every_output
from services.rollout_server.preflight import CPU_HEAD_DIMS
from services.rollout_server.weights.weight_loader import BACKEND, StagedWeightLoader


def test_an_unfinished_output_carries_the_spans_of_all_tokens_so_far() -> None:
    put_spans_on_every_output()
    state = RequestState.__new__(RequestState)
    state.output_kind = None
    state.request_index = 0
    state.sampling_mask_chunks = state.routed_experts_chunks = []
    state.spec_decode_metrics = None
    count = 2
    state.detokenizer = SimpleNamespace(
        get_next_output_text=lambda finished, delta: "",
        output_token_ids=[5, 6],
        num_output_tokens=lambda: count,
    )
    state.logprobs_processor = SimpleNamespace(logprobs=None, cumulative_logprob=None)
    state.weight_version_starts = [("3", 0), ("4", 1)]
    output = state._new_completion_output([6], None, None)
    assert isinstance(output, CompletionOutput)
    assert output.finish_reason is None
    spans = [(span.version, span.start, span.end) for span in output.weight_versions]
    assert spans == [("3", 0, 1), ("4", 1, 2)]


def test_patching_twice_wraps_once() -> None:
    put_spans_on_every_output()
    once = RequestState._new_completion_output
    put_spans_on_every_output()
    assert RequestState._new_completion_output is once


def test_what_the_other_patches_replace_still_exists() -> None:
    assert list(inspect.signature(system_utils._maybe_force_spawn).parameters) == []
    assert "generators" in inspect.getsource(GPUModelRunner._bookkeeping_sync)
    assert "_init_executor" in vars(UniProcExecutor)
    for module in (multiproc_executor, uniproc_executor):
        assert "= get_file_store_init_method()" in inspect.getsource(module)


def test_an_argument_has_vllms_own_action_and_a_parsed_value() -> None:
    parser = ArgumentParser()
    assert {"model", "block_size", "allowed_origins"} <= parser.actions.keys()
    assert parser.defaults().chat_template is None
    assert parser.parsed("block_size", 32) == 32
    with pytest.raises(ValueError, match="true or false"):
        parser.parsed("enforce_eager", "yes")


def test_an_engine_is_registered_once_and_an_update_can_be_closed() -> None:
    for _ in range(2):
        weight_updates.register(BACKEND, StagedWeightLoader)
    assert BACKEND in WeightTransferEngineFactory._registry
    assert "self._weight_update_active = False" in inspect.getsource(Worker.finish_weight_update)
    worker = SimpleNamespace(_weight_update_active=True)
    weight_updates.close(worker)
    assert not worker._weight_update_active


def test_private_names_of_vllm_are_in_one_folder() -> None:
    root = Path(__file__).parents[2] / "services" / "rollout_server"
    used = {
        f"{path.relative_to(root)}: {ast.unparse(node)}"
        for path in root.rglob("*.py")
        if "vllm_patches" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)
        if ast.unparse(node.value) not in ("self", "os")
    }
    assert used == set()


def test_vllm_pauses_with_the_same_two_calls_and_a_wait_that_it_says_nobody_needs() -> None:
    source = inspect.getsource(AsyncLLM.pause_generation)
    body = source.rpartition('"""')[2]
    assert [line.strip() for line in body.splitlines() if "await" in line] == [
        "await self.renderer.clear_mm_cache_async()",
        "await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)",
        "await asyncio.sleep(0.02)",
    ]
    assert "not required for correctness" in body


def test_the_head_sizes_are_those_of_vllms_cpu_attention() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_DIMS


def test_engine_arguments_are_vllms_own_names_and_ours_stay_ours() -> None:
    config = RolloutServerConfig(model="m", engine_args={"block_size": 32, "chat_template": "x"})
    arguments = server_arguments(config)
    assert arguments.chat_template == "x"
    engine = AsyncEngineArgs.from_cli_args(arguments)
    assert engine.block_size == 32
    assert engine.logprobs_mode == "processed_logprobs"
    for name in ("no_such_argument", "worker_extension_cls"):
        with pytest.raises(InvalidInput, match=f"engine_args.{name}"):
            server_arguments(RolloutServerConfig(model="m", engine_args={name: 1}))


def test_stale_kv_caches_are_never_shared_with_new_requests() -> None:
    stale = server_arguments(RolloutServerConfig(model="m", in_flight="keep_stale"))
    exact = server_arguments(RolloutServerConfig(model="m", in_flight="keep"))
    assert not stale.enable_prefix_caching
    assert exact.enable_prefix_caching


def test_cpu_generators_still_cannot_go_back() -> None:
    with pytest.raises(RuntimeError):
        torch.Generator().set_offset(0)
