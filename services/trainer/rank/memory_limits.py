"""Refuses a model that this rank's GPU or its node cannot hold, before anything is loaded."""

from pathlib import Path

import psutil
import torch
from transformers import AutoConfig

from services.protocol.model_source import name_or_path
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import TrainerConfig
from services.trainer.sizing.host import check_host
from services.trainer.sizing.rank_memory import GIB
from services.trainer.sizing.remedies import check_fits
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training


def check_memory(config: TrainerConfig, algorithm: AlgorithmConfig) -> None:
    """Compare the sizing with the memory of a rank's GPU and of its node. All ranks decide alike
    where these are equal.

    A model whose parameters cannot be counted from its config.json is let through, and one that
    is missing is left to those who load it.

    Raises:
        InvalidInput: it does not fit, with the keys that would make it fit.
    """
    if config.device != "cuda":
        return
    try:
        found = AutoConfig.from_pretrained(name_or_path(config.model), trust_remote_code=False)
        shape = ModelShape.of(found.get_text_config().to_dict())
    except (OSError, ValueError, KeyError, TypeError):
        return
    if shape.parameters is None:
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    training = Training(shape=shape, trainer=config, algorithm=algorithm)
    check_fits(training, total / GIB)
    check_host(training, node_memory() / GIB)


def node_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of this machine's memory, or of its container's limit if that is less."""
    total: int = psutil.virtual_memory().total
    try:
        return min(total, int((cgroup / "memory.max").read_text()))  # `max` where there is none
    except (OSError, ValueError):
        return total
