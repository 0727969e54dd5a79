"""Bytes of host memory that one rank needs. Each function is one term."""

from collections.abc import Callable, Mapping

from services.protocol.errors import InvalidInput
from services.trainer.sizing import held
from services.trainer.sizing.held import FLOAT32
from services.trainer.sizing.parked import parked
from services.trainer.sizing.training import Training

GIB = 2**30
PROCESS_GIB = 3.0
"""A process with torch, transformers and a CUDA context."""
SNAPSHOT_BUFFERS = 3
"""Versions that can be sent, and the buffer that the next one is written to."""


def process(training: Training) -> float:
    """Code and libraries of the process, and weights that are being read: a few pieces."""
    return PROCESS_GIB * GIB


def snapshots(training: Training) -> float:
    """Copies for the weight bus: two versions and the next; only ranks of the first copy of the
    model send."""
    lora = training.trainer.lora
    sent = training.parameters
    if lora is not None and lora.push == "adapter":
        sent = training.adapter
    return SNAPSHOT_BUFFERS * training.itemsize * sent / training.shards


def checkpoint(training: Training) -> float:
    """A copy of what a checkpoint holds, while it is written: weights in float32 and moments, a
    critic's besides, and a reference that follows the policy."""
    count = training.trained + training.critic_parameters
    if training.has_reference and training.algorithm.kl.refresh_steps is not None:
        count += training.parameters
    moments = held.shard_of_moments(training) + held.shard_of_critic(training)[2]
    return FLOAT32 * count / training.shards + moments


def offloaded(training: Training) -> float:
    """What `offload` keeps here: moments, or parameters, gradients and moments, those of critic and
    reference besides; and the inputs of checkpointed layers with `activation_offload`."""
    parameters, gradients, moments = held.shard_of_critic(training)
    total = 0.0
    if training.trainer.offload != "none":
        total += held.shard_of_moments(training) + moments
    if training.trainer.offload == "all":
        total += held.shard_of_parameters(training) + held.shard_of_gradients(training)
        total += held.shard_of_reference(training) + parameters + gradients
    if training.trainer.activation_offload:
        shape = training.shape
        total += training.tokens * shape.layers * shape.hidden * training.itemsize
    return total


HOST: Mapping[str, Callable[[Training], float]] = {
    "process": process,
    "snapshots": snapshots,
    "copy for a checkpoint": checkpoint,
    "offloaded": offloaded,
    "state that waits for its turn": parked,
}
"""Terms of a rank's host memory."""


def host_parts(training: Training) -> dict[str, float]:
    """Bytes by term; terms that are 0 are left out."""
    counted = {name: term(training) for name, term in HOST.items()}
    return {name: size for name, size in counted.items() if size}


def checkpoint_disk(training: Training) -> float:
    """Bytes on disk of the checkpoints that a run keeps, and of the one that is being written."""
    return (training.trainer.checkpoints_kept + 1) * checkpoint(training) * training.shards


def check_host(
    training: Training, node_gib: float, *, together: int | None = None, beside_gib: float = 0.0
) -> None:
    """Refuse ranks whose node has not the host memory that they take.

    Args:
        training: what they hold and do.
        node_gib: host memory of the node.
        together: ranks of a node; None: `ranks_per_node`, or the one that it has at least.
        beside_gib: host memory that engines and relay of the same node take.

    Raises:
        InvalidInput: with the figure, its parts, and the limit.
    """
    together = together or training.trainer.ranks_per_node or 1
    parts = {name: size / GIB for name, size in host_parts(training).items()}
    needed = together * sum(parts.values()) + beside_gib
    if needed <= node_gib:
        return
    told = " + ".join(f"{size:.1f} of {name}" for name, size in parts.items()) + " each"
    told += f" and {beside_gib:.1f} for engines and relay" if beside_gib else ""
    fix = (
        f"{together} of them need about {needed:.1f} GiB of host memory, {told}, and a node "
        f"has {node_gib:.1f}. Spread them over more nodes, offload less, or take larger nodes."
    )
    raise InvalidInput("trainer.ranks_per_node", together, fix)
