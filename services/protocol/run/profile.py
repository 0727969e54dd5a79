"""Profiles of train steps while a run goes on."""

from pydantic import Field

from services.protocol.strict import StrictModel

PROFILE_SPACE = 1 << 30
"""Bytes that must be free for the trace of one rank; a larger one is not written."""


class ProfileOrder(StrictModel):
    """Body of `POST /v1/runs/{run_id}/profile`.

    Attributes:
        steps: train steps in a row, from the next one on.
        ranks: of the trainer, that are to be profiled.
    """

    steps: int = Field(default=2, ge=1, le=10)
    ranks: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=16)


class ProfileRequest(ProfileOrder):
    """What the trainer is asked for.

    Attributes:
        run_id: the run it must hold.
        folder: where ranks leave their traces and tables.
    """

    run_id: str
    folder: str


class RankProfile(StrictModel):
    """Where the time of one rank went.

    Attributes:
        rank: which.
        last_step: the last train step that was profiled.
        steps: how many were.
        seconds: wall time from the beginning of the first to the end of the last.
        recorded_seconds: of them those in which operators were recorded: all but the later
            micro-batches of a step.
        phases: seconds by phase; `between`: the rest, such as pushes and waits for a batch.
        kinds: recorded seconds by kind of operator, of kernels on CUDA; `idle`: the rest.
        operators: recorded seconds of the largest, those of operators inside them left out.
        trace: its file, for chrome://tracing or Perfetto; empty if there is none.
        problem: why not.
    """

    rank: int
    last_step: int
    steps: int
    seconds: float
    recorded_seconds: float
    phases: dict[str, float]
    kinds: dict[str, float]
    operators: dict[str, float]
    trace: str = ""
    problem: str = ""


class Profile(StrictModel):
    """A profile of a run, as far as it is there.

    Attributes:
        name: of its folder in `profiles` of the run directory.
        folder: of traces and tables.
        last_step: the train step after which ranks write them; 0: not known any more.
        ranks: those that are done.
    """

    name: str
    folder: str
    last_step: int = 0
    ranks: tuple[RankProfile, ...] = ()
