"""A session of the router: the calls of one agent episode, as trajectories."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.protocol.trajectory import PolicySpan, Trajectory

SESSION_PREFIX = "sess_"
"""Begins the id of every session that the router made."""

SessionState = Literal["open", "finished"]

CallKind = Literal["first", "extended", "branched", "resampled", "retokenized", "other_history"]
"""How a call joins its session, by token ids:

- `first`: it is the first one;
- `extended`: its prompt begins with all tokens of a trajectory, which goes on;
- `branched`: the same, but with some turns of a trajectory that has already gone on;
- `resampled`: it has the prompt of an earlier call;
- `retokenized`: its messages go on from an earlier answer, but the token ids do not: the
  answer's text was tokenised in another way, or the chat template writes it differently;
- `other_history`: another conversation, or one that was edited.
"""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SessionTrajectory(_Answer):
    """One trajectory of a session, as JSON; fields of the same name as in `Trajectory`.

    Response tokens begin after the first prompt. Among them are those that the policy did
    not sample (later user turns, tool results, the template between turns), with mask 0 and
    logprob 0.0; they count to the policy span that follows them.

    Attributes:
        prompt_token_ids: tokens of the first call's prompt.
        response_token_ids: all tokens after it.
        behaviour_logprobs: of each response token, from the engine that sampled it.
        loss_mask: 1 for each response token that the policy sampled.
        spans: version, first token, one past the last token, and replica of each stretch.
        finish_reason: of the last answer.
        text: of the response.
        begun_by: why it is a trajectory of its own: the kind of the call that began it.
        calls: calls along it.
        shared_tokens: leading response tokens that it has in common with another trajectory
            of the session, in which they have their mask; here it is 0.
    """

    prompt_token_ids: list[int]
    response_token_ids: list[int]
    behaviour_logprobs: list[float]
    loss_mask: list[int]
    spans: list[tuple[int, int, int, str]]
    finish_reason: str
    text: str
    begun_by: CallKind
    calls: int
    shared_tokens: int

    def to_trajectory(self) -> Trajectory:
        """The same facts as the trainer takes them."""
        return Trajectory(
            prompt_token_ids=tuple(self.prompt_token_ids),
            response_token_ids=tuple(self.response_token_ids),
            behaviour_logprobs=tuple(self.behaviour_logprobs),
            loss_mask=tuple(self.loss_mask),
            spans=tuple(
                PolicySpan(version=version, start=start, end=end, replica_id=replica_id)
                for version, start, end, replica_id in self.spans
            ),
            finish_reason=self.finish_reason,
            text=self.text,
        )


class SessionSummary(_Answer):
    """A session without its tokens, as JSON.

    Attributes:
        id: value of the session header of its calls.
        state: whether calls may still join.
        created: Unix time in seconds.
        metadata: what its maker said of it.
        reward: what `finish` said, None for nothing.
        cursor: place in the order of finishing, to list from; None while it is open.
        calls: recorded calls by kind.
        open_calls: calls that are not answered yet.
        unrecorded_calls: calls that left nothing: failed, given up by their client, answered
            after the session was finished, or answered by a backend without a journal.
        tokens: recorded tokens.
        trajectory_count: trajectories that these make, and
        trajectory_tokens: the tokens of all of them; what several have in common is counted in
            each, so these can be far more than the recorded ones.
    """

    id: str
    object: Literal["session"] = "session"
    state: SessionState
    created: int
    metadata: dict[str, str]
    reward: float | None
    cursor: int | None
    calls: dict[str, int]
    open_calls: int
    unrecorded_calls: int
    tokens: int
    trajectory_count: int
    trajectory_tokens: int


class SessionFields(SessionSummary):
    """A whole session, as JSON, or some of its trajectories.

    Attributes:
        trajectories: those that were asked for.
    """

    trajectories: list[SessionTrajectory]

    @classmethod
    def of(cls, summary: SessionSummary, trajectories: list[SessionTrajectory]) -> "SessionFields":
        """A summary and what it leaves out."""
        return cls(**dict(summary), trajectories=trajectories)


class SessionList(_Answer):
    """Answer to a list request; go on after the last session's `cursor`.

    Attributes:
        data: the sessions.
    """

    object: Literal["list"] = "list"
    data: list[SessionSummary]


class SessionInterrupted(_Answer):
    """Answer to an interruption.

    Attributes:
        id: of the session.
        stopped: requests to replicas that the asked router stopped; their answers go on by
            themselves. Those of other routers are stopped a moment later.
    """

    id: str
    object: Literal["session.interrupted"] = "session.interrupted"
    stopped: int


class SessionDeleted(_Answer):
    """Answer to a delete request.

    Attributes:
        id: of the session.
    """

    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: Literal[True] = True
