"""Imported by the process that engines of tests are forked from, and by nobody else.

A fork's parent is that process and not the one that asked for the engine, so an engine
would end itself at once. It ends with the server of forks, and so with the tests.
"""

from services.observability.garbage import heavy_imports

with heavy_imports():
    import vllm.model_executor.models.qwen3
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401

    from services.rollout_server.engine.vllm_patches import executors
    from services.rollout_server.engine.vllm_patches.engine_fork import fork_engine_processes

executors.die_with_parent = lambda: None  # type: ignore[attr-defined]
fork_engine_processes()  # of tensor-parallel workers
