"""The policy: a Hugging Face causal model, scored at response tokens, sharded by FSDP2."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from services.protocol.errors import InvalidInput
from services.trainer.batch.collate import MicroBatch
from services.trainer.config import GradientSync, TrainerConfig
from services.trainer.experts.names import CheckpointNames
from services.trainer.experts.routing import Routing, experts_of
from services.trainer.heartbeat import HEARTBEAT
from services.trainer.joint_work import JointWork, joint_work
from services.trainer.model.blank import blank_model, refuse_unsendable
from services.trainer.model.compiled import compile_layers
from services.trainer.model.context_parallel import (
    ALONE,
    ContextGroup,
    check_context_parallel,
)
from services.trainer.model.layer_marks import mark_layers
from services.trainer.model.loading import Progress, load_weights
from services.trainer.model.lora import ADAPTER_PARAMETERS, add_lora
from services.trainer.model.model_check import check_model, remove_randomness
from services.trainer.model.packed_attention import packed_hidden, padded_hidden
from services.trainer.model.token_logprobs import Entropy, Logits, token_logprobs
from services.trainer.model.twin import layers_of
from services.trainer.model.weight_files import download
from services.trainer.offload.activation_offload import checkpoint_on_host
from services.trainer.offload.sharding import shard, shards_device

_PREFIX = "causal."
_SAMPLED = 32
"""Tokens whose probabilities of all ids are held at once."""

P = TypeVar("P", bound="Policy")


class Policy(nn.Module):
    """Scores given tokens without making logits for the rest of the sequence."""

    def __init__(
        self,
        causal: Any,
        *,
        packs: bool,
        logits: Logits,
        gradient_sync: GradientSync,
        context_group: ContextGroup = ALONE,
        shares: bool = False,
    ) -> None:
        super().__init__()
        self.causal: Any = causal  # a transformers model; torch's types know no attributes
        self.packs, self.shares, self._logits = packs, shares, logits
        self._gradient_sync, self.context_group = gradient_sync, context_group
        self.routing = Routing(causal)

    def forward(
        self, micro: MicroBatch, temperature: float, entropy: Entropy = "none"
    ) -> tuple[Tensor, Tensor | None]:
        """Current logprobs of a micro-batch's trained tokens, and entropies there.

        Args:
            micro: B rows with N trained tokens.
            temperature: divides the logits.
            entropy: whether it is computed, and whether a gradient goes through it.

        Returns:
            float32 logprobs `[N]` with gradient, float32 entropies `[N]` in nats or None.
        """
        own = self.own_tokens(micro)
        logprobs, entropies = token_logprobs(
            self.states(micro, own),
            self.causal.get_output_embeddings(),
            micro.target[own] if micro.tree is None else micro.tree.target,
            replace(self._logits, temperature=temperature),
            entropy=entropy,
        )
        if entropies is not None:
            entropies = self.of_all(entropies, micro, own)
        return self.of_all(logprobs, micro, own), entropies

    def sample(self, micro: MicroBatch, draws: Tensor) -> Tensor:
        """Tokens in place of a micro-batch's targets, sampled at temperature 1.

        Args:
            micro: B rows with N trained tokens, and no tree of them.
            draws: `[N]` in [0, 1), one for each token.

        Returns:
            int64 `[N]`, without gradient.
        """
        own = self.own_tokens(micro)
        states, head = self.states(micro, own), self.causal.get_output_embeddings()
        tokens = []
        for hidden, draw in zip(states.split(_SAMPLED), draws[own].split(_SAMPLED), strict=True):
            product = self._logits.product(hidden, head.weight, head.bias)
            # On CUDA torch has no cumsum that repeats, which a run may ask for.
            below = self._logits.form.of(product).softmax(-1).cpu().cumsum(-1)
            tokens.append(torch.searchsorted(below, draw[:, None].cpu())[:, 0])
        # As floats, which hold every token id.
        sampled = torch.cat(tokens).clamp_(max=self.vocabulary - 1).float().to(states.device)
        return self.of_all(sampled, micro, own).long()

    def own_tokens(self, micro: MicroBatch) -> slice:
        """Which of the N trained tokens this rank scores: all, or those of its slice."""
        return self.context_group.own_places(micro.position, len(micro.input_ids))

    def states(self, micro: MicroBatch, own: slice) -> Tensor:
        """Last hidden states `[n, hidden]` at the places that predict the `own` tokens, of a tree
        `[M, hidden]`."""
        if micro.tree is not None:
            states = packed_hidden(self.causal, micro.tree.input_ids, micro.tree)
            return states.index_select(0, micro.tree.scored)
        if not self.packs:
            states = padded_hidden(self.causal, micro.input_ids, micro.rows)
            return states.index_select(0, micro.position)
        group = self.context_group
        states = packed_hidden(self.causal, micro.input_ids, micro.rows, group)
        return states.index_select(0, micro.position[own] - group.rank * len(states))

    def of_all(self, values: Tensor, micro: MicroBatch, own: slice) -> Tensor:
        """Values of all N trained tokens from those of the states. Collective."""
        if micro.tree is not None:
            return values.index_select(0, micro.tree.again)
        return self.context_group.gather(values, own, len(micro.target))

    def reshard_all(self) -> None:
        """Leave only local shards: after a forward alone the root stays gathered."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def reduce_gradients(self, last: bool) -> None:
        """Say before a backward pass whether it is the `last` before an update.

        Copies of the model add up their gradients after the last one: until then each keeps
        the sums of its own ranks, which are shards as well.
        """
        assert isinstance(self, FSDPModule), "the policy is sharded"
        if self._gradient_sync == "last_micro_batch":
            self.set_requires_gradient_sync(last)
        else:
            self.set_requires_all_reduce(last)

    def checkpoint_parameters(self) -> Iterator[tuple[str, DTensor]]:
        """Sharded parameters under their checkpoint names; a tied head is left out, and so is
        an adapter."""
        for name, parameter in self.named_parameters():
            assert isinstance(parameter, DTensor), f"{name} is not sharded"
            if name.rpartition(".")[2] not in ADAPTER_PARAMETERS:
                yield name.removeprefix(_PREFIX), parameter

    def trained_parameters(self) -> list[nn.Parameter]:
        """What an optimizer is to change: the adapter's parameters if there is one, else all."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def trained_matrices(self) -> list[nn.Parameter]:
        """Those of the decoder layers that have two dimensions, without stacks of experts and the
        biases of such stacks."""
        named = decoder_layers(self.causal).named_parameters()
        matrices = (one for name, one in named if one.ndim == 2 and not name.endswith("bias"))
        return [one for one in matrices if one.requires_grad]

    @property
    def model_type(self) -> str:
        """Transformers' name of the architecture."""
        return str(self.causal.config.get_text_config().model_type)

    @property
    def vocabulary(self) -> int:
        """Number of token ids that can be embedded."""
        return int(self.causal.config.get_text_config().vocab_size)


def load_policy(
    config: TrainerConfig,
    mesh: DeviceMesh,
    kind: type[P],
    context_group: ContextGroup = ALONE,
    progress: Progress | None = None,
) -> P:
    """Load the checkpoint with float32 master weights, sharded over `mesh`. Collective.

    A rank never holds more than its shards. What an adapter leaves frozen is held in the element
    type that is computed with.

    Args:
        config: the checkpoint and how to hold it.
        mesh: the ranks.
        kind: what to make of it.
        context_group: the ranks that share a micro-batch with this one.
        progress: is told how many bytes are read; the process's heartbeat unless given.

    Raises:
        InvalidInput: the checkpoint is missing or damaged, is not a causal model, would be scored
            in another way than by its own code, cannot be packed with `packing: on`, cannot be
            shared by `context_parallel` ranks, or lacks a layer that an adapter is for; or it is
            to be compiled and there is no compiler.
    """
    with joint_work() as work:
        work.once_a_node(partial(_download, config.model))
        policy = _blank_policy(config, mesh, kind, context_group)
        _fill(policy, config, work, progress)
    return policy


def load_initial_weights(
    policy: Policy, config: TrainerConfig, progress: Progress | None = None
) -> None:
    """Fill a policy anew with the weights of the checkpoint, in place. Collective.

    Raises:
        InvalidInput: they are missing or damaged.
    """
    policy.reshard_all()
    with joint_work() as work:
        _fill(policy, config, work, progress)


def _download(model: str) -> None:
    HEARTBEAT.loading(0, 0)
    with _loading(model):
        download(model)


def _blank_policy(
    config: TrainerConfig, mesh: DeviceMesh, kind: type[P], context_group: ContextGroup
) -> P:
    """The sharded policy, on the meta device."""
    held = torch.float32 if config.lora is None else getattr(torch, config.dtype)
    with _loading(config.model):
        causal = blank_model(config.model, held)
    refuse_unsendable(causal, config)
    check_context_parallel(config, causal.config.get_text_config())
    scoring = check_model(config, causal.config)
    causal.set_attn_implementation(scoring.attention)
    if config.activation_checkpointing and not config.activation_offload:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.lora is not None:
        add_lora(causal, decoder_layers(causal), config.lora)
    remove_randomness(causal)
    policy = kind(
        causal,
        packs=scoring.packs,
        shares=scoring.shares,
        logits=Logits(
            form=scoring.form, max_bytes=config.logits_bytes, float32=config.float32_logits
        ),
        gradient_sync=config.gradient_sync,
        context_group=context_group,
    )
    if config.compile:
        compile_layers(decoder_layers(causal))
    mark_layers(decoder_layers(causal))
    if config.activation_offload:
        checkpoint_on_host(decoder_layers(causal), torch.device(config.device))
    layers = decoder_layers(causal)
    # Experts are nearly all of a mixture: they are gathered only while they work.
    experts = [module for layer in layers for module in experts_of(layer)]
    names = CheckpointNames(policy.model_type)
    stacks = [
        one for name, one in causal.named_parameters() if names.is_stack(name, tuple(one.shape))
    ]
    shard(policy, [*experts, *layers], config, mesh, stacks)
    register_fsdp_forward_method(policy, "sample")
    return policy


def _fill(
    policy: Policy, config: TrainerConfig, work: JointWork, progress: Progress | None
) -> None:
    def report(done: int, total: int) -> None:
        work.check()
        (progress or HEARTBEAT.loading)(done, total)

    device = torch.device(config.device)
    with _loading(config.model):
        load_weights(
            policy.causal,
            config.model,
            seed=config.seed,
            device=device,
            shards_device=shards_device(config, device),
            progress=report,
        )


@contextmanager
def _loading(model: str) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput("trainer.model", model, error.fix) from None
    except (OSError, ValueError) as error:
        raise InvalidInput("trainer.model", model, f"It cannot be loaded: {error}.") from None


def decoder_layers(causal: Any) -> nn.ModuleList:
    """The list of decoder layers, whatever the architecture calls it.

    Raises:
        InvalidInput: no module list is as long as the configured number of layers.
    """
    layers = layers_of(causal)
    if layers is None:
        fix = "It has no list of as many decoder layers as its configuration says."
        raise InvalidInput("trainer.model", type(causal).__name__, fix)
    return layers
