"""Weight updates on a worker: the engine that receives them, and the end of one.

vLLM refuses to register an engine twice, and to open an update while another is open on a worker.
It closes one only in its own `finish_weight_update`, which takes all weights to be replaced.
"""

from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory


def register(name: str, engine: type[WeightTransferEngine[Any, Any]]) -> None:
    """Make a weight-transfer engine known to vLLM; calling it again does nothing."""
    if name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(name, engine)


def close(worker: Any) -> None:
    """Let the worker open another update: the open one was abandoned, or has been loaded."""
    worker._weight_update_active = False
