"""The scheduling space of a run: every published scheme is a point in it."""

from collections.abc import Iterator
from math import ceil
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel

_MAX_REFILLS = 32

SCHEDULE_PRESETS: dict[str, dict[str, Any]] = {
    "sync": {"max_staleness": 0, "batches_in_flight": 1},
    "one_step_off": {"max_staleness": 1, "batches_in_flight": 2},
    "stream": {
        "max_staleness": 0,
        "batches_in_flight": 1,
        "oversample": 0.5,
        "unfinished": "interrupt",
        "on_stale": "mask",
    },
    "partial": {
        "max_staleness": 2,
        "batches_in_flight": 1,
        "oversample": 0.5,
        "unfinished": "continue",
    },
    "async": {"max_staleness": 2, "unfinished": "continue"},
}
"""The keys of each `preset`; a key of the run file wins."""


def may_be_stale(schedule: Any) -> bool:
    """Whether data of `schedule` lets answers of older weights be trained."""
    if not isinstance(schedule, dict):
        return False
    name = schedule.get("preset")
    chosen = SCHEDULE_PRESETS.get(name, {}) if isinstance(name, str) else {}
    return bool((chosen | schedule).get("max_staleness"))


class ScheduleConfig(StrictModel):
    """A point in the scheduling space; docs/schedules.md says how to choose one.

    Attributes:
        preset: fills in what a published scheme chooses; keys that are given win. See
            `SCHEDULE_PRESETS`.
        max_staleness: trainer version minus the version of the oldest token that is trained
            on, at consumption.
        batches_in_flight: batches of sample groups that may be sampled, scored or waiting
            for their batch at a time; None: one more than `max_staleness`.
        oversample: further groups in flight, as a share of those.
        unfinished: what happens to groups that are not rolled out when a batch is full.
            `wait`: a batch is the oldest groups and waits for each. `interrupt`: it takes
            what is ready; the others stop, keep their tokens, and go on first under the
            next weights. `continue`: it takes what is ready; the others go on through the
            update.
        on_stale: what happens to a group that would exceed `max_staleness`. `wait`: its
            batch waits for it, and grows if need be. `withhold`: the same, but so few are
            admitted that no batch grows. `drop`: it closes as expired. `mask`: it is
            trained without the tokens that exceed it, which still count for its rewards.
        batch_barrier: score only when the whole batch is rolled out, to measure what
            per-trajectory overlap is worth.
        dynamic_sampling: replace groups whose rewards are all equal instead of letting
            them count towards the batch.
        max_refills: how often one place in a batch is filled again so; then the group stays in
            the batch: filtered, or trained if the algorithm can learn from equal rewards.
        adaptive: fewer groups in flight, down to one batch, while engines are full or groups
            grow old in waiting, and again as many as the schedule allows while the trainer
            waits for rollouts.
    """

    preset: Literal["sync", "one_step_off", "stream", "partial", "async"] = "sync"
    max_staleness: int = Field(default=0, ge=0, le=64)
    batches_in_flight: int | None = Field(default=None, ge=1, le=65)
    oversample: float = Field(default=0.0, ge=0, le=4)
    unfinished: Literal["wait", "interrupt", "continue"] = "wait"
    on_stale: Literal["wait", "withhold", "drop", "mask"] = "wait"
    batch_barrier: bool = False
    dynamic_sampling: bool = False
    max_refills: int = Field(default=_MAX_REFILLS, ge=1)
    adaptive: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("preset"), str):
            return data
        return SCHEDULE_PRESETS.get(data["preset"], {}) | data

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for reason in self._contradictions():
            raise ValueError(reason)
        return self

    def _contradictions(self) -> Iterator[str]:
        batches, on_policy = self.batches_in_flight or 1, self.max_staleness == 0
        if batches > self.max_staleness + 1:
            yield (
                f"batches_in_flight: {batches} needs a max_staleness of at least {batches - 1}: "
                "the last of them is trained after all others"
            )
        if self.unfinished == "interrupt" and on_policy and self.on_stale != "mask":
            yield (
                "unfinished: interrupt keeps tokens of earlier weights, and max_staleness: 0 "
                "lets none of them be trained: set on_stale: mask, or a max_staleness of 1"
            )
        if self.oversample and on_policy and self.on_stale not in ("mask", "drop"):
            yield (
                "oversample leaves groups over, and with max_staleness: 0 no later batch may "
                "train them: set on_stale: mask or drop, or a max_staleness of 1"
            )
        if self.oversample and on_policy and self.unfinished == "wait":
            yield (
                "oversample with max_staleness: 0 and unfinished: wait would sample groups only "
                "to throw them away: set unfinished: interrupt or continue"
            )
        if self.batch_barrier and self.unfinished == "interrupt":
            yield "batch_barrier waits for the groups that unfinished: interrupt stops: use one"
        if self.max_refills != _MAX_REFILLS and not self.dynamic_sampling:
            yield "max_refills needs dynamic_sampling: true"

    def groups_in_flight(self, batch_groups: int) -> int:
        """Groups that may be open at a time: sampled, scored, or waiting for their batch."""
        batches = self.batches_in_flight or self.max_staleness + 1
        return ceil(batch_groups * batches * (1 + self.oversample))

    def groups_ahead(self, batch_groups: int) -> int:
        """Groups that may be open, or in a batch whose weights are not live yet."""
        return ceil(batch_groups * (self.max_staleness + 1) * (1 + self.oversample))
