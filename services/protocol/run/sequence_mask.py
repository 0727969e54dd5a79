"""The `algorithm.sequence_mask` of a run file: which answers are too far from the policy."""

from pydantic import Field

from services.protocol.strict import StrictModel


class SequenceMaskConfig(StrictModel):
    """Whole answers that are left out of the loss, beside what happens to their tokens.

    Attributes:
        geometric_floor: least geometric mean of the mismatch ratio over an answer, for
            `ratio_anchor: proximal`; 0 for none.
        geometric_cap: largest such mean; None for no such bound.
        negative_kl: bound on the mean of behaviour minus current logprob over an answer, nats a
            token. Above it an answer with a negative advantage is left out (DeepSeek-V3.2's
            off-policy sequence masking, arXiv 2512.02556, section 3.1); if advantages differ by
            token, only its tokens with a negative one. None for no such bound.
    """

    geometric_floor: float = Field(default=0.0, ge=0, le=1)
    geometric_cap: float | None = Field(default=None, ge=1)
    negative_kl: float | None = Field(default=None, gt=0)

    @property
    def geometric(self) -> bool:
        """Whether the mismatch ratio is asked for."""
        return self.geometric_floor > 0 or self.geometric_cap is not None
