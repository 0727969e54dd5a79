"""A train step of one rank, with the trainer's own model, FSDP2 and step, on fake tensors."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.rank_memory.device import NAME, counted, fake_ranks, joint_work_alone
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.batch.collate import MicroBatch, collate_sequences
from services.trainer.batch.packing import PackedRows
from services.trainer.config import TrainerConfig
from services.trainer.model import model
from services.trainer.model.blank import blank_model
from services.trainer.model.context_parallel import ContextGroup
from services.trainer.model.loading import _held
from services.trainer.model.model_check import check_model
from services.trainer.offload.activation_offload import checkpoint_on_host
from services.trainer.sizing.shape import ModelShape
from services.trainer.step.auxiliary_models import AuxiliaryModels
from services.trainer.step.balance import ExpertBalance
from services.trainer.step.update import make_adamw, update

STEPS = 2
"""The moments exist from the second one on."""

MICRO_BATCHES = 2
"""Of each step: the second finds the gradients of the first."""

ROWS = 4
"""Of each micro-batch, equally long."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Bytes of rank 0.

    Attributes:
        held: on the GPU as the second step begins: parameters and moments, of all models.
        step: the most on the GPU in that step.
        host: the most of its tensors in host memory in that step.
        largest: bytes at that moment by the operation that made them.
    """

    held: int
    step: int
    host: int
    largest: dict[str, int]


def count(
    shape: ModelShape,
    trainer: TrainerConfig,
    algorithm: AlgorithmConfig,
    folder: Path,
    *,
    explained: bool = False,
) -> Counted:
    """Run two train steps of full micro-batches and count the second.

    Args:
        shape: of the model.
        trainer: its `model` is not read.
        algorithm: of the run.
        folder: where the model's config.json is written.
        explained: also say what took the memory.
    """
    (folder / "config.json").write_text(json.dumps(hugging_face(shape)))
    config = trainer.model_copy(update={"model": str(folder)})
    with fake_ranks(config) as mesh, _without_data(), counted(explained) as counter:
        group = ContextGroup.make(config)
        policy = model.load_policy(config, mesh, model.Policy, group)
        auxiliary = AuxiliaryModels.load(algorithm, config, mesh, group)
        optimizer = make_adamw(
            policy.trained_parameters(), config, algorithm, learning_rate=1e-6, weight_decay=0.0
        )
        with _disable_current_modes():
            rows = [[1] * (config.micro_batch_tokens // ROWS)] * ROWS
            collated = collate_sequences(rows)
        for _ in range(STEPS):
            held = counter.now[NAME]
            counter.restart()
            balance = ExpertBalance(policy, algorithm.router_aux_loss_coef, torch.device(NAME))
            _step(policy, optimizer, auxiliary, balance, collated)
        return Counted(
            held=held,
            step=counter.peak[NAME],
            host=counter.peak["cpu"],
            largest=dict(counter.largest.most_common(24)),
        )


def _step(
    policy: model.Policy,
    optimizer: Any,
    auxiliary: AuxiliaryModels,
    balance: ExpertBalance,
    collated: MicroBatch,
) -> None:
    """The passes and updates of a train step with one minibatch."""
    device = torch.device(NAME)
    micros = [collated.to(device) for _ in range(MICRO_BATCHES)]
    for micro in micros:
        if auxiliary.reference is not None:
            auxiliary.reference.logprobs(micro, 1.0, policy)
        if auxiliary.critic is not None:
            auxiliary.critic.values(micro)
    for number, micro in enumerate(micros, 1):
        policy.reduce_gradients(number == MICRO_BATCHES)
        logprobs, _ = balance.score(micro, 1.0, "value")
        loss = logprobs.sum() + balance.loss(micro, tokens=1)
        loss.backward()  # type: ignore[no-untyped-call]
        del logprobs, loss
    update(optimizer, policy.trained_parameters(), [], grad_clip=1.0)
    if auxiliary.critic is None:
        return
    critic = auxiliary.critic
    for number, micro in enumerate(micros, 1):
        critic.model.reduce_gradients(number == MICRO_BATCHES)
        critic.model(micro).sum().backward()
    update(critic.optimizer, critic.model.trained_parameters(), [], grad_clip=1.0)


def hugging_face(shape: ModelShape) -> dict[str, Any]:
    """A config.json of this shape."""
    config: dict[str, Any] = {
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 131072,
    }
    if shape.experts and not shape.qk_norm:
        config |= {
            "model_type": "mixtral",
            "num_local_experts": shape.experts,
            "num_experts_per_tok": shape.active_experts,
            "sliding_window": None,
        }
    elif shape.experts:
        config |= {
            "model_type": "qwen3_moe",
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.active_experts,
            "moe_intermediate_size": shape.intermediate,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


@contextmanager
def _without_data() -> Iterator[None]:
    """Replace what needs data, or do it on real tensors: weights from files, the check of the
    model, where rows lie, and parts of the mesh."""

    gpu = torch.device(NAME)

    def load(causal: Any, *_: Any, shards_device: torch.device, **__: Any) -> None:
        for one in _held(causal):
            one.allocate(gpu, shards_device if shards_device.type == "cpu" else gpu)

    def on_host(layers: nn.ModuleList, _: torch.device) -> None:
        checkpoint_on_host(layers, gpu)

    of = PackedRows.of

    def real(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            with _disable_current_modes():
                return function(*given)

        return call

    def packed(lengths: Sequence[int], device: torch.device | None = None) -> PackedRows:
        with _disable_current_modes():
            rows = of(lengths)
        groups = tuple(_moved(one, device) for one in rows.groups)
        return _moved(replace(rows, groups=groups), device)

    with ExitStack() as stack:
        stack.enter_context(patch.object(model, "load_weights", load))
        stack.enter_context(patch.object(model, "joint_work", joint_work_alone))
        stack.enter_context(patch.object(model, "checkpoint_on_host", on_host))
        stack.enter_context(patch.object(model, "blank_model", real(blank_model)))
        stack.enter_context(patch.object(model, "check_model", real(check_model)))
        sliced = real(DeviceMesh.__getitem__)
        stack.enter_context(patch.object(DeviceMesh, "__getitem__", sliced))
        stack.enter_context(patch.object(PackedRows, "of", packed))
        yield


def _moved(one: Any, device: torch.device | None) -> Any:
    """A dataclass with its tensors on another device."""
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    return replace(one, **{name: value.to(device or "cpu") for name, value in tensors.items()})
