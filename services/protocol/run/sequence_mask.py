"""The `algorithm.sequence_mask` of a run file: which answers are too far from the policy."""

from pydantic import Field

from services.protocol.strict import StrictModel


class SequenceMaskConfig(StrictModel):
    """Whole answers that are left out of the loss, beside what happens to their tokens.

    Attributes:
        geometric_floor: least geometric mean of the mismatch ratio over an answer, for
            `ratio_anchor: proximal`; 0 for none.
        geometric_cap: most that it may be; None for no such bound.
        negative_kl: nats a token by which the current policy may find an answer with a negative
            advantage less likely than the behaviour policy did (DeepSeek-V3.2's off-policy
            sequence masking, arXiv 2512.02556, section 3.1), with advantages by token its tokens
            with negative ones; None for no such bound.
    """

    geometric_floor: float = Field(default=0.0, ge=0, le=1)
    geometric_cap: float | None = Field(default=None, ge=1)
    negative_kl: float | None = Field(default=None, gt=0)

    @property
    def geometric(self) -> bool:
        """Whether the mismatch ratio is asked for."""
        return self.geometric_floor > 0 or self.geometric_cap is not None
