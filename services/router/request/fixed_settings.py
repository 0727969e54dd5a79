"""Settings of a call that its client cannot choose."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FixedSettings:
    """What an offered session sets for each of its calls; see `SessionOffer`.

    Attributes:
        model: answers, whatever model the call names.
        max_tokens: bound of the answer; a call may ask for less.
        sampling: sampling parameters by vLLM's names, the seed among them.
    """

    model: str
    max_tokens: int
    sampling: dict[str, int | float]
