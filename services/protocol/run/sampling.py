"""How the policy samples the answers of a run."""

from pydantic import Field

from services.protocol.strict import StrictModel


class SamplingConfig(StrictModel):
    """Sampling parameters. Truncating samplers are left out on purpose: the trainer
    could not reproduce their probabilities.

    Attributes:
        temperature: divides the logits, in rollouts and in the trainer; the engine refuses
            more than 2.
        max_tokens: longest answer.
    """

    temperature: float = Field(default=1.0, gt=0, le=2)
    max_tokens: int = Field(default=256, ge=1)
