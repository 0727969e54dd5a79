"""Stopping an engine for a commit, without the 20 ms that vLLM adds for its callers' comfort.

`AsyncLLM.pause_generation` sleeps after the engine has stopped, so that the last outputs
reach their readers before the call returns. Every output of ours says which version made
each of its tokens, so their order does not matter and needs no wait. The attributes `renderer` and
`engine_core` are not documented by vLLM.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # heavy, and what is here is tested without it
    from vllm.v1.engine.async_llm import AsyncLLM


async def pause(engine: "AsyncLLM", *, mode: str, clear_cache: bool) -> None:
    """Stop stepping; see `AsyncLLM.pause_generation` for the arguments."""
    if clear_cache:
        await engine.renderer.clear_mm_cache_async()
    await engine.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)
