"""A session of the router: the calls of one agent episode, as trajectories."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.protocol.strict import StrictModel, wrong_field
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

CutReason = Literal[
    "template",
    "edited",
    "settings",
    "end_of_turn",
    "not_separable",
    "media",
    "too_long",
    "api",
]
"""Why a call that goes on from an earlier answer begins a trajectory of its own.

The prompt was rendered by the chat template (`session_prompts: template`), and

- `template`: the template writes the answer with other tokens, or without its thoughts.

Or the recorded tokens could not be continued (`session_prompts: recorded`):

- `edited`: the client passed the answer back with another text, other tool calls or thoughts, or
  the answer had more tool calls than the client was shown;
- `settings`: the model, the tools, or the arguments of the template are other ones, or the prompt
  is to be truncated;
- `end_of_turn`: the answer does not end with the token with which the template ends it: it was cut
  at its length or by a stop string, or the template replaces the token;
- `not_separable`: what the template writes after the answer cannot be found in its prompt;
- `media`: the messages have images, audio or the like;
- `too_long`: with the recorded tokens the prompt is longer than the model's context;
- `api`: the call has a prompt of tokens of its own.
"""


OfferState = Literal["none", "waiting", "taken"]
"""Whether a session is work for an agent outside, and whether one has taken it."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SessionOffer(StrictModel):
    """Work for an agent outside: whoever takes the session plays the task in its calls.

    Attributes:
        task: all that the agent is told of it.
        run: whose task it is; agents may ask for those of one run.
        key: the run's own name of the episode: while its session is kept, another offer with this
            key is that session, so that a run that was killed finds it again. Empty: none.
        model: answers every call, whatever model the call names.
        sampling: sampling parameters of every call, whatever the call says: the logprobs must be
            those that the trainer computes.
        max_tokens: bound of each answer.
        seed: of the first answer; each later one has the next.
        graders: names of the run's graders, of which the agent may choose one at the end.
        live: the agent that took it has a use of its own for the session: it stays with the agent,
            until it is idle, when the run deletes it before its end.
    """

    task: dict[str, Any]
    run: str = Field(max_length=64)
    key: str = Field(default="", max_length=600)
    model: str
    sampling: dict[str, int | float] = Field(default={})
    max_tokens: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)
    graders: list[str] = Field(default=[])
    live: bool = False

    @property
    def task_id(self) -> str | None:
        """Of the task; None for one without."""
        return self.task.get("task_id")


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
        cut: why that call does not continue the trajectory of the answer that it goes on from;
            None: it goes on from no earlier answer.
        calls: calls along it.
        turns: of each of them, one past its last response token, and its number among the
            session's calls, from 1 in the order of recording.
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
    cut: CutReason | None = None
    calls: int
    turns: list[tuple[int, int]] = []
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


Reward = Annotated[float, Field(strict=True)]
"""A number: a string or a truth value is a mistake of the agent's, and no reward."""


class SessionEnding(StrictModel):
    """How an episode ended, as its player says; at most one of reward, text and failure.

    Attributes:
        reward: of the episode, on top of rewards before its end.
        text: an answer to be graded.
        failure: why there is no result; it is never a reward.
        grader: which of the offer's graders shall grade the text, or without one the last answer;
            None: the task's own.
    """

    reward: Reward | None = None
    text: str | None = Field(default=None, max_length=1 << 20)
    failure: str | None = Field(default=None, min_length=1, max_length=500)
    grader: str | None = Field(default=None, min_length=1, max_length=40)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [name for name in ("reward", "text", "failure") if getattr(self, name) is not None]
        if len(given) > 1:
            raise wrong_field(given[1], getattr(self, given[1]), f"Leave it or {given[0]} out.")
        if self.grader is not None and given not in ([], ["text"]):
            raise wrong_field("grader", self.grader, f"It gives the reward: leave {given[0]} out.")
        return self

    @property
    def is_graded(self) -> bool:
        """Whether it has a reward, or will have one from a grader that it asks for."""
        return (self.reward, self.text, self.grader) != (None, None, None)


class SessionSummary(_Answer):
    """A session without its tokens, as JSON.

    Attributes:
        id: value of the session header of its calls.
        state: whether calls may still join.
        created: Unix time in seconds.
        metadata: what its maker said of it.
        reward: what `finish` said, on top of rewards before it; None for nothing.
        turn_rewards: rewards before its end, by the number of the newest call then, 0 for none.
        token_rewards: others, one of each token of a call, by the call's number.
        text: the answer that `finish` gave to be graded.
        grader: that `finish` named.
        failure: why there is no result, as `finish` said.
        offer: see `OfferState`.
        cursor: place in the order of finishing, to list from; None while it is open.
        calls: recorded calls by kind.
        cuts: calls that go on from an earlier answer without its tokens, by reason.
        open_calls: calls that are not answered yet.
        unrecorded_calls: calls that left nothing: failed, given up by their client, answered
            after the session was finished, or answered by a backend without a journal.
        tokens: recorded tokens.
        trajectory_count: trajectories that the recorded calls make.
        trajectory_tokens: tokens of all trajectories; tokens that several have in common count in
            each, so that there can be far more of them than `tokens`.
    """

    id: str
    object: Literal["session"] = "session"
    state: SessionState
    created: int
    metadata: dict[str, str]
    reward: float | None
    turn_rewards: dict[int, float] = {}
    token_rewards: dict[int, list[float]] = {}
    text: str | None = None
    grader: str | None = None
    failure: str | None = None
    offer: OfferState = "none"
    cursor: int | None
    calls: dict[str, int]
    cuts: dict[str, int] = {}
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


class SessionTaken(_Answer):
    """Answer to an agent that asks for work.

    Attributes:
        session: what it got; its id is the API key of the agent's calls. None: nothing came in
            time.
        task: see `SessionOffer`.
        model: the name to ask for, if the agent wants to know.
        graders: see `SessionOffer`.
    """

    object: Literal["session.taken"] = "session.taken"
    session: SessionSummary | None = None
    task: dict[str, Any] | None = None
    model: str | None = None
    graders: list[str] = []


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
