"""Bytes that a rank holds between train steps. Each function is one term."""

from services.trainer.sizing.training import Training

FLOAT32 = 4
EIGHT_BIT = 1 + FLOAT32 / 256
"""A code, and a scale for each block of 256: `step/eight_bit_adamw.py`."""
SMALLEST_IN_EIGHT_BITS = 4096
"""Elements of the smallest shard that torchao keeps so."""


def shard_of_parameters(training: Training) -> float:
    """This rank's shard of the master weights, wherever it is: float32, or what an adapter leaves
    frozen in the element type that is computed with, and the adapter in float32."""
    if training.trainer.lora is None:
        return FLOAT32 * training.parameters / training.shards
    frozen = training.itemsize * training.parameters
    return (frozen + FLOAT32 * training.adapter) / training.shards


def shard_of_gradients(training: Training) -> float:
    """Float32 gradients of this rank's shard."""
    return FLOAT32 * training.trained / training.shards


def shard_of_moments(training: Training) -> float:
    """AdamW's two moments of this rank's shard; Muon has one for each of its matrices."""
    moments = 2 * training.trained
    if training.algorithm.optimizer == "muon":
        moments -= training.shape.matrix_parameters
    return moment_size(training) * moments / training.shards


def moment_size(training: Training) -> float:
    """Bytes of one moment of one parameter. An adapter counts as float32 if a tensor of it stays
    so; so do norms, of which there are few."""
    lora, shape = training.trainer.lora, training.shape
    if training.trainer.moments == "float32":
        return FLOAT32
    if lora is not None:
        smallest = lora.rank * min(shape.hidden, shape.keys) / training.shards
        return EIGHT_BIT if smallest >= SMALLEST_IN_EIGHT_BITS else FLOAT32
    return EIGHT_BIT


def shard_of_reference(training: Training) -> float:
    """This rank's shard of the KL reference, in float32."""
    return FLOAT32 * training.parameters / training.shards if training.has_reference else 0.0


def shard_of_critic(training: Training) -> tuple[float, float, float]:
    """The critic's parameters, gradients and moments on this rank."""
    count = training.critic_parameters
    held, trained = FLOAT32 * count, count
    if training.trainer.lora is not None:
        trained = training.adapter if count else 0
        held = training.itemsize * count + FLOAT32 * trained
    both = FLOAT32 * trained, 2 * moment_size(training) * trained
    return held / training.shards, both[0] / training.shards, both[1] / training.shards


def parameters(training: Training) -> float:
    """Master weights on the GPU; with `offload: all` they wait in host memory."""
    return 0.0 if training.trainer.offload == "all" else shard_of_parameters(training)


def gradients(training: Training) -> float:
    """Gradients between the micro-batches of an update: this rank's shard, unless that waits in
    host memory; with `gradient_sync: last_micro_batch` the float32 gradient of the whole model."""
    if training.trainer.gradient_sync == "last_micro_batch":
        return FLOAT32 * training.trained
    # Copies of the model keep the sum of their own ranks on the GPU until the last pass.
    away = training.trainer.offload == "all" and training.trainer.model_copies == 1
    return 0.0 if away else shard_of_gradients(training)


def moments(training: Training) -> float:
    """AdamW's moments on the GPU; with any `offload` they wait in host memory."""
    return shard_of_moments(training) if training.trainer.offload == "none" else 0.0


def reference(training: Training) -> float:
    """The KL reference: a shard, and embedding and output layer, which FSDP2 leaves gathered after
    a forward pass without a backward one."""
    if not training.has_reference:
        return 0.0
    gathered = training.itemsize * training.shape.embedding_parameters
    return gathered + (0.0 if training.trainer.offload == "all" else shard_of_reference(training))


def critic(training: Training) -> float:
    """The critic's shard of parameters and moments, and its embedding, which stays gathered after
    its values are taken. Its gradients come when those of the policy have gone."""
    if not training.critic_parameters:
        return 0.0
    gathered = training.itemsize * training.shape.vocabulary * training.shape.hidden
    return gathered + _critic_between_steps(training)


def _critic_between_steps(training: Training) -> float:
    held, _, moments = shard_of_critic(training)
    return {"none": held + moments, "optimizer": held, "all": 0.0}[training.trainer.offload]


def between_steps(training: Training) -> float:
    """What stays on the GPU between train steps: all of the above without gradients, and without
    the critic's embedding, which its update lets go."""
    total = parameters(training) + moments(training) + reference(training)
    return total + _critic_between_steps(training)
