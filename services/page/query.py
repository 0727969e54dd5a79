"""What requests ask for beside sample groups and trajectories."""

from typing import Annotated

from pydantic import Field

from services.page.reading.timeline_reading import LATEST
from services.protocol.strict import StrictModel

_Time = Annotated[float, Field(ge=0, le=LATEST)]


class CurvesQuery(StrictModel, use_attribute_docstrings=True):
    """The numbers of train steps."""

    points: int = Field(default=800, ge=2, le=4000)
    """Most rows: where there are more steps, a row is the mean over several."""


class TimelineQuery(StrictModel, use_attribute_docstrings=True):
    """What every part of the system did."""

    since: _Time | None = None
    """Seconds since 1970; the beginning by default."""

    until: _Time | None = None
    """Seconds since 1970; the end by default."""

    bins: int = Field(default=400, ge=10, le=2000)
    """Equal parts of that time."""


class MomentQuery(StrictModel, use_attribute_docstrings=True):
    """What one part of the system did at a time."""

    lane: str = Field(max_length=1000)
    """A lane of the timeline, such as `trainer 0`."""

    at: _Time
    """Seconds since 1970."""

    slack: _Time = 0.0
    """Seconds before and after it that count as well."""


class PushesQuery(StrictModel, use_attribute_docstrings=True):
    """Pushes of weights."""

    limit: int = Field(default=100, ge=1, le=500)
    """Most pushes."""
