"""Which tasks a run prefers to learn from."""

from typing import Self

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel


class CurriculumConfig(StrictModel):
    """Prefer tasks that the policy solves sometimes.

    A task whose pass rate lies in the band, or is not known yet, is taken whenever the order
    comes to it; any other one with the chance `floor`, so that it is looked at again.

    Attributes:
        low: lower end of the band of pass rates, inclusive.
        high: upper end, inclusive.
        floor: chance of a task outside of the band.
    """

    low: float = Field(default=0.1, ge=0, le=1)
    high: float = Field(default=0.9, ge=0, le=1)
    floor: float = Field(default=0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _band(self) -> Self:
        if self.low > self.high:
            raise ValueError("low must be at most high")
        return self
