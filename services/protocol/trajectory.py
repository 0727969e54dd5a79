"""The result of a rollout."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PolicySpan:
    """A run of response tokens sampled under one policy version on one replica.

    Attributes:
        version: policy version under which the tokens were sampled.
        start: index of the first token, counted in response tokens.
        end: index after the last token.
        replica_id: the rollout server that sampled them.
    """

    version: int
    start: int
    end: int
    replica_id: str


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One sampled answer, token-exact.

    Attributes:
        prompt_token_ids: the rendered prompt, length P.
        response_token_ids: sampled tokens including the stop token, length T.
        behaviour_logprobs: natural-log probability of each response token as the engine
            that sampled it reported it, length T.
        loss_mask: 1 for tokens the policy sampled, 0 for everything else, length T.
        spans: contiguous policy spans that cover the T response tokens in order.
        finish_reason: "stop" or "length".
        text: the decoded answer.
    """

    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    spans: tuple[PolicySpan, ...]
    finish_reason: str
    text: str

    def __post_init__(self) -> None:
        """Refuse a trajectory whose per-token fields disagree."""
        length = len(self.response_token_ids)
        if len(self.behaviour_logprobs) != length or len(self.loss_mask) != length:
            raise ValueError(
                f"a trajectory of {length} tokens has {len(self.behaviour_logprobs)} "
                f"logprobs and {len(self.loss_mask)} mask entries"
            )
        at = 0
        for span in self.spans:
            if span.start != at or span.end < span.start:
                raise ValueError(f"policy spans do not cover the tokens in order: {self.spans}")
            at = span.end
        if at != length:
            raise ValueError(f"policy spans cover {at} of {length} tokens")

    @property
    def oldest_version(self) -> int:
        """The smallest policy version in the trajectory."""
        return min(span.version for span in self.spans)

    @property
    def newest_version(self) -> int:
        """The largest policy version in the trajectory."""
        return max(span.version for span in self.spans)

    @property
    def was_continued(self) -> bool:
        """Whether a call's answer was cut and continued: its random numbers, and the rounding of
        what its last tokens saw, are others than without the cut.

        Between two calls stand tokens that nobody sampled.
        """
        mask = self.loss_mask
        return any(mask[span.start - 1] and mask[span.start] for span in self.spans[1:])
