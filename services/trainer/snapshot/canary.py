"""The token sequences by which every delivery is proved, and when the ranks score them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from services.observability.log import Log
from services.protocol.errors import NotReady
from services.trainer.snapshot.publisher import Publisher

CANARY_TOKENS = 15
"""Length of a sequence: with the one token that an engine must generate, it fits any model."""

DELIVERY_S = 5.0
"""Longest wait for a version's delivery before it is scored."""

_log = Log("trainer")


def canary_sequences(vocabulary: int, count: int) -> tuple[tuple[int, ...], ...]:
    """`count` sequences of random token ids, the same for every run and version.

    Random ids reach rows of the embedding and of the head that text would leave alone.
    """
    draw = random.Random(f"canary/{vocabulary}")
    return tuple(
        tuple(draw.randrange(vocabulary) for _ in range(CANARY_TOKENS)) for _ in range(count)
    )


def by_sequence(parts: Sequence[dict[int, list[float]]]) -> list[list[float]]:
    """The scores of all ranks, each of its own share, in the order of the sequences."""
    scored = {index: values for part in parts for index, values in part.items()}
    return [scored[index] for index in range(len(scored))]


class CanaryScorer:
    """Scores each published version once, before the weights change again.

    The scores are a forward pass, for which the ranks gather the whole model. So nothing
    waits for them: a version is published first, and scored when it has been delivered or
    when the next train step is about to begin, whichever comes first.

    Args:
        score: the ranks' logprobs of some sequences; called only while no other operation
            is under way.
    """

    def __init__(
        self,
        publisher: Publisher,
        score: Callable[[list[list[int]]], Awaitable[list[list[float]]]],
    ) -> None:
        self._publisher, self._score = publisher, score

    async def score_when_delivered(self, version: int, turn: asyncio.Lock) -> None:
        """Wait for the delivery, then, in turn with other operations, score.

        A version that could not be scored stays unproved, which the bus counts. New ranks publish
        and score again.
        """
        try:
            await self._publisher.delivered(version, timeout_s=DELIVERY_S)
            async with turn:
                await self.score()
        except (NotReady, RuntimeError) as error:
            _log.warning("canary_not_scored", version=version, why=str(error))

    async def score(self) -> None:
        """Score the newest version, unless that was done, and publish the scores.

        Raises:
            NotReady: the ranks or the bus are gone.
        """
        manifest = self._publisher.unproved
        if manifest is None:
            return
        scored = await self._score([list(one) for one in manifest.canary])
        await self._publisher.publish_canary(tuple(tuple(values) for values in scored))
