"""Memory of a rank's GPU: what it holds, and the moment of a train step that needs the most."""

from collections.abc import Callable, Mapping

from services.trainer.sizing import held, passes
from services.trainer.sizing.training import Training

GIB = 2**30
CONTEXT_GIB = 1.3
"""CUDA's context of a process, measured (docs/hardware.md)."""
OVERHEAD_GIB = 4.0
"""CUDA's context, NCCL's buffers, and what the allocator cannot use for fragmentation (1.8 at most,
docs/hardware.md)."""

Term = Callable[[Training], float]

HELD: Mapping[str, Term] = {
    "parameters": held.parameters,
    "gradients": held.gradients,
    "moments": held.moments,
    "KL reference": held.reference,
    "critic": held.critic,
}
"""Terms of what a rank holds through a step."""

MOMENTS: Mapping[str, Mapping[str, Term]] = {
    "output layer": {
        "gathered embedding and output layer": passes.gathered_ends,
        "buffer of the last layer": passes.last_layer_buffer,
        "activations": passes.kept_activations,
        "router logits": passes.router_logits,
        "last states": passes.last_states,
        "logits": passes.logits,
        "sum of the output layer's gradient": passes.head_sum,
    },
    "layers": {
        "gathered embedding and output layer": passes.gathered_ends,
        "gathered layers": passes.gathered_layers,
        "activations": passes.kept_activations,
        "router logits": passes.router_logits,
        "inside of a layer": passes.saved_in_layer,
        "gradients of activations": passes.gradients_in_layer,
        "gradients and reduce buffer of a layer": passes.layer_gradients,
        "gradient of the output layer": passes.head_gradient,
    },
    "gradients of experts": {
        "gathered embedding and output layer": passes.gathered_ends,
        "gathered layers": passes.gathered_beside_experts,
        "activations": passes.kept_activations,
        "router logits": passes.router_logits,
        "inside of a layer": passes.saved_in_attention,
        "gradients and reduce buffer of experts": passes.expert_gradients,
        "gradient of the output layer": passes.head_gradient,
    },
    "end of the backward pass": {
        "gradients and reduce buffer of embedding and output layer": passes.reduced_ends,
    },
}
"""Terms of each moment of a pass that can be the one that needs the most."""


def held_parts(training: Training) -> dict[str, float]:
    """Bytes by term that a rank holds through a step; terms that are 0 are left out."""
    return _parts(HELD, training)


def step_parts(training: Training) -> tuple[str, dict[str, float]]:
    """The moment of a pass that needs the most memory, and its bytes by term."""
    every = {name: _parts(_terms(name, training), training) for name in MOMENTS}
    return max(every.items(), key=lambda one: sum(one[1].values()))


def rank_bytes(training: Training) -> float:
    """The most that tensors of a rank take in a step, CUDA's own memory left out."""
    return sum(held_parts(training).values()) + sum(step_parts(training)[1].values())


def rank_gib(training: Training) -> float:
    """Memory that a rank's GPU must have."""
    return rank_bytes(training) / GIB + OVERHEAD_GIB


def _terms(moment: str, training: Training) -> Mapping[str, Term]:
    terms = dict(MOMENTS[moment])
    if not training.trainer.activation_checkpointing:
        # All insides are kept already.
        terms.pop("inside of a layer", None)
    return terms


def _parts(terms: Mapping[str, Term], training: Training) -> dict[str, float]:
    counted = {name: term(training) for name, term in terms.items()}
    return {name: size for name, size in counted.items() if size}
