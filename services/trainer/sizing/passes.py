"""Bytes that a pass needs beside what a rank holds. Each function is one term.

What FSDP2 keeps gathered, and when it lets go, is in torch's
`torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`.
"""

from services.trainer.sizing.held import FLOAT32
from services.trainer.sizing.training import Training


def gathered_ends(training: Training) -> float:
    """Embedding and output layer, which stay gathered from the forward pass to the end of the
    backward pass."""
    return training.itemsize * training.shape.embedding_parameters


def gathered_layers(training: Training) -> float:
    """The layer that computes, and the buffer of the unit that is fetched meanwhile: the next
    layer, or the next but for its experts, which are fetched when it computes."""
    fetched = 0 if training.shards == 1 else training.shape.unit_parameters
    return training.itemsize * (training.shape.layer_parameters + fetched)


def gathered_beside_experts(training: Training) -> float:
    """The same while no experts compute."""
    return training.itemsize * 2 * training.shape.unit_parameters


def last_layer_buffer(training: Training) -> float:
    """What the last layer, or its experts, was gathered into, which FSDP2 lets go when the forward
    pass ends; a rank that has the whole model gathers nothing."""
    if training.shards == 1:
        return 0.0
    shape = training.shape
    return training.itemsize * (shape.expert_parameters or shape.layer_parameters)


def kept_activations(training: Training) -> float:
    """What the layers keep for the backward pass: with checkpointing the input of each, or with
    `activation_offload` of the two that are on their way; else all that their operations save."""
    shape = training.shape
    if training.trainer.activation_offload:
        return training.tokens * min(2, shape.layers) * shape.hidden * training.itemsize
    if training.trainer.activation_checkpointing:
        return training.tokens * shape.layers * shape.hidden * training.itemsize
    return shape.layers * saved_in_layer(training)


def saved_in_layer(training: Training) -> float:
    """Activations that the operations of one layer save.

    Beside those of `saved_in_attention`, of the feed-forward layers gate, its activation, up and
    the product.
    """
    shape, size = training.shape, training.itemsize
    inner = 4 * size * shape.intermediate
    if shape.experts:
        # Each token once for each of its experts: its copy, and what comes back.
        inner = shape.active_experts * (inner + 2 * size * shape.hidden)
    return saved_in_attention(training) + training.tokens * inner


def saved_in_attention(training: Training) -> float:
    """Activations that are saved in one layer outside its feed-forward layers.

    Of both norms the input in float32, and the input and output of the weight; of queries and
    keys the same where they have norms; query, key, value and output of attention.
    """
    shape, size = training.shape, training.itemsize
    norm = FLOAT32 + 2 * size
    values = 2 * norm * shape.hidden + size * (2 * shape.queries + 2 * shape.keys)
    if shape.qk_norm:
        values += (FLOAT32 + size) * (shape.queries + shape.keys)
    return training.tokens * values


def gradients_in_layer(training: Training) -> float:
    """Gradients of activations while one layer goes backward: of the residual stream, and of
    the widest part: two inside the feed-forward layers, or three of what narrow experts give
    back."""
    shape, size = training.shape, training.itemsize
    widest = 2 * shape.intermediate
    if shape.experts:
        widest = shape.active_experts * max(widest, 3 * shape.hidden)
    return training.tokens * size * (2 * shape.hidden + widest)


def layer_gradients(training: Training) -> float:
    """Gradients of a layer's weights, and the float32 buffer in which the layer before it is
    still being reduced; both without experts."""
    lora = training.trainer.lora
    trained = training.shape.unit_parameters
    if lora is not None:
        trained = training.adapter // training.shape.layers
    return (training.itemsize + FLOAT32) * trained


def expert_gradients(training: Training) -> float:
    """Gradients of a layer's experts, the float32 buffer in which they are reduced, and this rank's
    part of the sum; their weights are let go before. Of experts that lie by their rows the
    gradients are put in that order first, all but those of the output, a third, let go meanwhile.
    """
    if training.trainer.lora is not None:
        return 0.0
    size = training.itemsize + FLOAT32 + FLOAT32 / training.shards
    if training.shape.experts % training.shards:
        size += training.itemsize / 3
    return size * training.shape.expert_parameters


def router_logits(training: Training) -> float:
    """Of all layers, for the balancing loss: logits, and probabilities in float32 or the logits'
    gradient."""
    if not training.algorithm.router_aux_loss_coef:
        return 0.0
    shape = training.shape
    return training.tokens * shape.layers * shape.experts * (training.itemsize + FLOAT32)


def head_gradient(training: Training) -> float:
    """Gradient of the output layer until the backward pass ends, in the type of the pass."""
    if training.trainer.lora is not None:
        return 0.0
    return training.itemsize * training.shape.vocabulary * training.shape.hidden


def head_sum(training: Training) -> float:
    """The same while pieces of the tokens are added up: in float32, beside one piece's."""
    if training.trainer.lora is not None:
        return 0.0
    return (FLOAT32 + training.itemsize) * training.shape.vocabulary * training.shape.hidden


def logits(training: Training) -> float:
    """Of one piece of `logits_mb`: logits and probabilities in float32, over which their gradient
    is written, and that gradient in the type of the pass."""
    cast = 0 if training.itemsize == FLOAT32 else training.itemsize
    return training.trainer.logits_bytes * (2 * FLOAT32 + cast) / FLOAT32


def last_states(training: Training) -> float:
    """The last norm's float32 input, input and output, the states of trained tokens, and their
    gradient."""
    size = training.itemsize
    return training.tokens * training.shape.hidden * (FLOAT32 + 4 * size)


def reduced_ends(training: Training) -> float:
    """Gradients of embedding and output layer as the backward pass ends, the float32 buffer in
    which they are reduced, and this rank's part of the sum; the weights are let go before."""
    if training.trainer.lora is not None:
        return 0.0
    count = training.shape.embedding_parameters
    return count * (training.itemsize + FLOAT32 + FLOAT32 / training.shards)
