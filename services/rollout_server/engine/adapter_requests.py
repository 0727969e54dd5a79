"""Every request is answered with the adapter: clients ask for the policy and know of none."""

from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

ADAPTER_ID = 1
"""vLLM's number of the one adapter that an engine has."""

_IN_MEMORY = "/delivered/by/the/weight/bus"
"""vLLM asks for a path, and reads it only when the adapter is not there."""


class AdapterRequests:
    """Adds the adapter to every request that an engine is sent.

    Attributes:
        base: digest of the frozen weights that the engine has.
        there: an adapter was committed.

    Before the first adapter was committed, requests are the frozen model's: vLLM would look
    for an adapter that it does not have on disk, and end.
    """

    def __init__(self, engine: AsyncLLM, *, name: str, base: str) -> None:
        self._add = engine.add_request
        self._adapter = LoRARequest(name, ADAPTER_ID, _IN_MEMORY)
        self.base, self.there = base, False
        engine.add_request = self._add_adapted  # type: ignore[method-assign]

    async def _add_adapted(self, *args: Any, **kwargs: Any) -> Any:
        if self.there:
            kwargs["lora_request"] = self._adapter
        return await self._add(*args, **kwargs)
