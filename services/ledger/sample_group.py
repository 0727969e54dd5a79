"""A sample group of a ledger, and which ones are asked for."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from services.protocol.strict import StrictModel

Ending = Literal["trained", "filtered", "expired", "failed"]
Status = Ending | Literal["in_flight"]
Sort = Literal["newest", "oldest", "tokens"]
LARGEST = 2**53
"""Of a whole number that is asked for: the largest that a browser can hold."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A place in the prompt order.

    Attributes:
        position: 0-based, over all epochs; each is admitted once.
        epoch: 0-based.
        task_id: the task at that place.
    """

    position: int
    epoch: int
    task_id: str


@dataclass(frozen=True, kw_only=True)
class LedgerGroup:
    """An open sample group.

    Attributes:
        group_id: grows in the order of admission.
        prompt: the prompt that it samples.
        attempt: 1-based number of the rollout in progress or due.
    """

    group_id: int
    prompt: Prompt
    attempt: int


class GroupQuery(StrictModel, use_attribute_docstrings=True):
    """Which sample groups are asked for."""

    status: Status | None = None
    """How they ended; any by default."""

    step: int | None = Field(default=None, ge=0, le=LARGEST)
    """The train step that closed them; any by default."""

    task: str = Field(default="", max_length=200)
    """Part of the id of their task."""

    sort: Sort = "newest"
    """By which they are ordered."""

    offset: int = Field(default=0, ge=0, le=LARGEST)
    """Groups to leave out."""

    limit: int = Field(default=50, ge=0, le=200)
    """Most groups."""
