"""The proof of a delivery: the engine's logprobs of fixed tokens."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.protocol.weights.weights import CanaryLogprobs, WeightManifest

if TYPE_CHECKING:  # heavy, and what is here is tested without it
    from vllm.v1.engine.async_llm import AsyncLLM

_NUMBERS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the engine answered.

    Attributes:
        logprobs: its scores of the canary's sequences; None: none came.
        unmoved: bit for bit the answer of another version before.
        not_as_sent: weights that were read back otherwise than they were sent.
    """

    logprobs: CanaryLogprobs | None = None
    unmoved: bool = False
    not_as_sent: str | None = None


class CanaryProver:
    """Asks one engine for the canary of each version that it has committed."""

    def __init__(self, engine: "AsyncLLM", *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._before: tuple[tuple[tuple[str, ...], ...], CanaryLogprobs] | None = None

    async def prove(self, manifest: WeightManifest) -> Proof:
        """Score the manifest's canary under the weights that the engine serves.

        Raises:
            TimeoutError: the engine did not come to it; it may be full of long requests.
            Exception: from the engine.
        """
        async with asyncio.timeout(self._timeout_s):
            scored = tuple(await asyncio.gather(*map(self._score, manifest.canary)))
        before, self._before = self._before, (manifest.digests, scored)
        unmoved = before is not None and before[0] != manifest.digests and before[1] == scored
        return Proof(logprobs=scored, unmoved=unmoved)

    async def _score(self, sequence: tuple[int, ...]) -> tuple[float, ...]:
        # vLLM is heavy and this module's logic is tested without it.
        from vllm import SamplingParams

        outputs = self._engine.generate(
            {"prompt_token_ids": list(sequence)},
            SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=1.0, detokenize=False),
            f"canary-{next(_NUMBERS)}",
        )
        async for output in outputs:
            final = output
        return tuple(
            one[token].logprob
            for token, one in zip(sequence[1:], final.prompt_logprobs[1:], strict=True)
        )
