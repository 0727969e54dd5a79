"""Settings of trainer, rollout server and weight bus that say together who has which GPU when."""

from collections.abc import Iterator

from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig


def placement_problems(
    trainer: TrainerConfig, rollout: RolloutServerConfig, bus: WeightBusConfig | None
) -> Iterator[InvalidInput]:
    """Settings that contradict each other, each with a fix."""
    if trainer.placement != rollout.placement:
        fix = f"Write {trainer.placement}, the placement of trainer.args."
        yield InvalidInput("rollout_server.args.placement", rollout.placement, fix)
    elif trainer.placement == "separate":
        for name, kept in (
            ("trainer", trainer.kept_on_gpu),
            ("rollout_server", rollout.kept_on_gpu),
        ):
            if kept != "none":
                fix = "Leave it out, or write placement: shared in trainer.args and "
                fix += "rollout_server.args: nobody else wants this GPU."
                yield InvalidInput(f"{name}.args.kept_on_gpu", kept, fix)
    else:
        yield from _of_turns(trainer, rollout)
        yield from _of_lost_weights(trainer, rollout, bus)


def _of_turns(trainer: TrainerConfig, rollout: RolloutServerConfig) -> Iterator[InvalidInput]:
    """Each worker of an engine has one rank to take turns with."""
    if trainer.gpus_per_rank:
        fix = "Write 0, or leave it out: engines hold the GPUs, and ranks compute there in turn."
        yield InvalidInput("trainer.args.gpus_per_rank", trainer.gpus_per_rank, fix)
    if rollout.device != trainer.device:
        fix = f"Write {trainer.device}, the device of trainer.args, for they take turns on it."
        yield InvalidInput("rollout_server.args.device", rollout.device, fix)
    workers = rollout.replicas * rollout.tensor_parallel_size
    if trainer.world_size != workers:
        fix = (
            f"Write {workers}, a rank for each of the {rollout.replicas} x "
            f"{rollout.tensor_parallel_size} workers of engines (rollout_server.args.replicas x "
            "tensor_parallel_size)."
        )
        yield InvalidInput("trainer.args.world_size", trainer.world_size, fix)
    if rollout.max_replicas is not None:
        fix = "Leave it out: with placement: shared the GPUs of the ranks are all there are."
        yield InvalidInput("rollout_server.args.max_replicas", rollout.max_replicas, fix)


def _of_lost_weights(
    trainer: TrainerConfig, rollout: RolloutServerConfig, bus: WeightBusConfig | None
) -> Iterator[InvalidInput]:
    """Weights that a sleeping engine drops must come from somewhere."""
    if rollout.kept_on_gpu == "weights":
        return
    if trainer.lora is not None and trainer.lora.push == "adapter":
        fix = (
            "Write weights, or trainer.args.lora with push: merged: a sleeping engine drops the "
            "frozen weights, and only the adapter is sent."
        )
        yield InvalidInput("rollout_server.args.kept_on_gpu", rollout.kept_on_gpu, fix)
    if bus is not None and not bus.relays:
        fix = (
            "Leave it out, or write rollout_server.args.kept_on_gpu: weights: those that a "
            "sleeping engine drops come back from the node's relay."
        )
        yield InvalidInput("weight_bus.args.relays", False, fix)
