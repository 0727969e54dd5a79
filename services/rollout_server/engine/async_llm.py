"""What is used of vLLM's `AsyncLLM`."""

from typing import Any, Protocol


class Engine(Protocol):
    """The methods are documented by vLLM; the attributes are not."""

    renderer: Any
    engine_core: Any
    output_processor: Any

    async def add_request(self, *args: Any, **kwargs: Any) -> Any:
        """Take a request in."""

    def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> Any:
        """Yield outputs; the last one has `prompt_logprobs`."""

    async def abort(self, request_id: list[str], internal: bool = False) -> None:
        """End requests, giving their clients a last output."""

    async def resume_generation(self) -> None:
        """Step again."""

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget cached blocks; whether that was possible."""

    async def sleep(self, level: int = 1, mode: Any = "abort") -> None:
        """Free the device's memory."""

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take the memory again; whether all of it is there."""

    async def start_weight_update(self) -> None:
        """Open an update on every worker."""

    async def update_weights(self, request: Any) -> None:
        """Hand every worker its update."""

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Load on every worker and label what is sampled from now on."""

    async def update_weight_version(self, new_version: str) -> None:
        """Label what is sampled from now on."""

    async def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()
    ) -> list[Any]:
        """Call a method of every worker."""
