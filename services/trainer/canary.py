"""The token sequences by which every delivery is proved, and the ranks' scores of them."""

import random
from collections.abc import Sequence

from services.protocol.weights import Canary

CANARY_TOKENS = 15
"""Length of a sequence: with the one token that an engine must generate, it fits any model."""


def canary_sequences(vocabulary: int, count: int) -> tuple[tuple[int, ...], ...]:
    """`count` sequences of random token ids, the same for every run and version.

    Random ids reach rows of the embedding and of the head that text would leave alone.
    """
    draw = random.Random(f"canary/{vocabulary}")
    return tuple(
        tuple(draw.randrange(vocabulary) for _ in range(CANARY_TOKENS)) for _ in range(count)
    )


def canary_of(
    sequences: tuple[tuple[int, ...], ...], parts: Sequence[dict[int, list[float]]]
) -> Canary | None:
    """The manifest's canary, from what each rank scored; None without sequences."""
    if not sequences:
        return None
    return Canary(
        sequences=sequences, logprobs=tuple(tuple(values) for values in by_sequence(parts))
    )


def by_sequence(parts: Sequence[dict[int, list[float]]]) -> list[list[float]]:
    """What the ranks scored, each its share, in the order of the sequences."""
    scored = {index: values for part in parts for index, values in part.items()}
    return [scored[index] for index in range(len(scored))]
