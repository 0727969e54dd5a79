"""The router's extensions of the OpenAI API, in requests and answers.

Every extension is open to any client; the orchestrator has no private door.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.protocol.trajectory import PolicySpan, Trajectory

SESSION_HEADER = "x-session-id"
"""Request header: calls with one value stay on one replica while it is healthy, and become
trajectories if the session is recorded (`services.protocol.session`)."""

MIN_VERSION_HEADER = "x-min-policy-version"
"""Request header: wait for a replica whose policy version is at least this integer."""

PRIORITY_HEADER = "x-priority"
"""Request header: an integer, lower goes first when replicas are full; else the body's
`priority`, else 0."""

REPLICA_HEADER = "x-millrace-replica"
"""Response header: the replica that was chosen first."""

CHOICE_HEADER = "x-millrace-choice"
"""Response header: `hit`, `new`, `moved` or `spilled`, or `free` without a session."""

JOURNAL_HEADER = "x-millrace-journal"
"""Response header: `none` when the answer comes from a backend that shows no token ids."""

RETURN_TRAJECTORY = "return_trajectory"
"""Request body flag: add a `trajectory` object to every finished choice."""

STREAM_BY = "stream_by"
PROGRESS_S = 10.0
"""Pause between comments in a stream by choice, which the router writes while the request makes
tokens, or waits where the router has a deadline of its own."""
"""Request body field for streaming: `token` (OpenAI's way, the default) or `choice`: one
event for each finished choice, in order of completion, which suits `n` > 1."""

StreamBy = Literal["token", "choice"]


class TrajectoryFields(BaseModel):
    """The `trajectory` object of a choice, as JSON.

    Attributes:
        prompt_token_ids: length P.
        token_ids: length T, including the stop token.
        logprobs: behaviour logprobs, natural log, length T.
        spans: `[policy_version, start, end, replica_id]` in order.
    """

    model_config = ConfigDict(extra="forbid")

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: list[tuple[int, int, int, str]]

    def to_trajectory(self, *, finish_reason: str, text: str) -> Trajectory:
        """The same facts as the trainer takes them."""
        return Trajectory(
            prompt_token_ids=tuple(self.prompt_token_ids),
            response_token_ids=tuple(self.token_ids),
            behaviour_logprobs=tuple(self.logprobs),
            loss_mask=(1,) * len(self.token_ids),
            spans=tuple(
                PolicySpan(version=version, start=start, end=end, replica_id=replica_id)
                for version, start, end, replica_id in self.spans
            ),
            finish_reason=finish_reason,
            text=text,
        )


class RouterLoad(BaseModel):
    """Answer of `GET /v1/load`: how full the replicas are, as one router sees it.

    Attributes:
        replicas: those with a lease.
        full: of those, such as have all the sequences in flight that they may have.
        in_flight: sequences on them, of all routers.
        waiting: requests that wait in this router because replicas are full, or to go on with an
            answer that was cut.
        queued: sequences in the engines' own queues, at the last look at each.
        kv_usage: share of the KV cache in use, mean over busy replicas, at the last look;
            None while none was looked at.
        max_choices: a request for more answers at once is refused.
        by_replica: sequences in flight on each replica with a lease.
    """

    replicas: int
    full: int
    in_flight: int
    waiting: int
    queued: float
    kv_usage: float | None
    max_choices: int
    by_replica: dict[str, int] = {}
