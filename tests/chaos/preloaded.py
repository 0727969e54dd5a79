"""Imported by the process that those of a scene are forked from, and by nobody else."""

from services.observability.garbage import heavy_imports

with heavy_imports():
    # What an engine would import in each of its processes after they were forked.
    import vllm.model_executor.models.qwen3
    import vllm.v1.worker.cpu_worker  # noqa: F401

    import tests.chaos.children  # noqa: F401
