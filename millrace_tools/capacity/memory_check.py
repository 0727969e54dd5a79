"""Refuses deployments whose GPUs or nodes have too little memory, before anything starts."""

from collections.abc import Mapping
from typing import Any

from millrace_tools.capacity.capacity import Nodes
from millrace_tools.capacity.engine_memory import EngineMemory
from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.model_shape import shape_of
from millrace_tools.capacity.shared_gpu import SharedGpu
from millrace_tools.capacity.sizing import relays_of, training_of
from services.protocol.model_source import name_or_path
from services.protocol.run.orchestrator import RunConfig
from services.trainer.sizing.host import check_host
from services.trainer.sizing.remedies import check_fits
from services.trainer.sizing.training import Training


def known_training(configs: Mapping[str, Any], run: RunConfig | None) -> Training | None:
    """What a deployment file's ranks train; None where that is unknown on this machine, or the
    ranks have no GPUs."""
    trainer = configs.get("trainer")
    if trainer is None or trainer.device != "cuda":
        return None
    shape = shape_of(trainer.model) or KNOWN_SHAPES.get(name_or_path(trainer.model))
    if shape is None or shape.parameters is None:
        return None
    return training_of(shape, trainer, run, configs.get("rollout_server"))


def check_memory(
    configs: Mapping[str, Any], training: Training, gpu_gib: float, nodes: Nodes | None
) -> None:
    """Refuse GPUs, and host memory of nodes where it is known, that are too small for the ranks,
    and in a shared placement for the engines beside them.

    Raises:
        InvalidInput: with the figure, and the settings that would make it fit.
    """
    host_gib = nodes.host_gib if nodes is not None else 0.0
    if training.trainer.placement == "separate" or "rollout_server" not in configs:
        check_fits(training, gpu_gib)
        if host_gib:
            check_host(training, host_gib)
        return
    rollout = configs["rollout_server"]
    engine = EngineMemory(
        shape=training.shape, rollout=rollout, gpu_gib=gpu_gib, relays=relays_of(configs)
    )
    SharedGpu(training=training, engine=engine).check()
    if nodes is not None and host_gib:
        gpus = int(max(one.resources.get("GPU", 0.0) for one in nodes.types))
        together = training.trainer.ranks_per_node or min(gpus, training.trainer.world_size)
        engines = together // rollout.tensor_parallel_size
        beside = engines * engine.host_gib + engine.relay_gib
        check_host(training, host_gib, together=together, beside_gib=beside)
