"""Keep seeded requests from killing a CPU engine: a patch of vLLM's model runner.

A request with a `seed` has a random generator of its own. When vLLM throws away a token that
it sampled too early, in the middle of a prefill or of the recomputation after a weight
update, it takes the generator one draw back. CPU generators cannot go back: the call raises
and ends the engine with everything in it. Here the draw is left as spent, so on CPU a seed
repeats an answer only if it was neither prefilled in pieces nor interrupted by an update.
"""

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_PATCHED = "_millrace_cpu_seeds"


def leave_draws_spent() -> None:
    """Patch vLLM in this process; calling it again does nothing."""
    if getattr(GPUModelRunner, _PATCHED, False):
        return
    original = GPUModelRunner._bookkeeping_sync

    def without_rewinding(self: GPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cpu":
            return original(self, *args, **kwargs)
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return original(self, *args, **kwargs)
        finally:
            batch.generators = generators

    GPUModelRunner._bookkeeping_sync = without_rewinding  # type: ignore[method-assign]
    setattr(GPUModelRunner, _PATCHED, True)
