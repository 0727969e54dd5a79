"""The calls of one session as trajectories: pure, by token ids alone.

A call goes on from an earlier answer if its prompt begins with that answer's prompt and
tokens, one for one. Answers therefore form trees, and every leaf ends one trajectory.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.protocol.rollout_server import RecordedStart
from services.protocol.session import CallKind, CutReason, SessionTrajectory
from services.router.answering.journal import Span
from services.router.trajectories.history import AnswerMark, History, HistoryMark


@dataclass(frozen=True, kw_only=True)
class RecordedChoice:
    """One finished answer: at least one token, each with its logprob, covered by spans.

    Attributes:
        message: what the client was shown; None: not all that was sampled.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    finish_reason: str
    text: str
    message: Mapping[str, Any] | None = None


class Turn:
    """One answer: the tokens put before it since the answer it goes on from, and its own.

    It never changes, so other threads may read it.

    Attributes:
        put: the tokens before it; one array for all answers to one prompt.
        sampled: its own tokens.
        depth: tokens up to its end.
        turns: answers up to it, itself included.
        number: of its call in the session, from 1.
        cut: why its call goes on from an earlier answer without its tokens, None if it does not.
    """

    def __init__(
        self,
        choice: RecordedChoice,
        *,
        put: "array[int]",
        parent: "Turn | None",
        kind: CallKind,
        call: "RecordedCall",
        number: int,
    ) -> None:
        begin: int = parent.depth if parent else 0
        self.turns: int = parent.turns + 1 if parent else 1
        self.parent, self.kind, self.put, self.number = parent, kind, put, number
        self.mark: HistoryMark = call.history.mark
        self.answer = None if choice.message is None else AnswerMark.of(choice.message)
        self.cut: CutReason | None = call.cut
        self.sampled, self.logprobs = array("i", choice.token_ids), array("d", choice.logprobs)
        self.spans = tuple(choice.spans)
        self.finish_reason, self.text = choice.finish_reason, choice.text
        self.depth: int = begin + len(self.put) + len(self.sampled)

    def begins(self, prompt: "array[int]") -> bool:
        """Whether its tokens stand in `prompt` where they stand in the tree."""
        own = self.depth - len(self.sampled)
        return (
            self.depth <= len(prompt)
            and prompt[own : self.depth] == self.sampled
            and prompt[own - len(self.put) : own] == self.put
        )

    def token_ids(self) -> list[int]:
        """All tokens up to its end."""
        parts: list[array[int]] = []
        turn: Turn | None = self
        while turn is not None:
            parts += [turn.sampled, turn.put]
            turn = turn.parent
        return [token for part in reversed(parts) for token in part]


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One finished call.

    Attributes:
        prompt_token_ids: the whole rendered prompt.
        choices: its answers, several with `n` > 1.
        history: what the client sent, to tell why a prompt goes on from no earlier answer.
        cut: why its prompt does not begin with the tokens of the answer that it goes on from, if
            that is known.
    """

    prompt_token_ids: Sequence[int]
    choices: Sequence[RecordedChoice]
    history: History
    cut: CutReason | None = None


class TrajectoryTree:
    """Everything that one session recorded.

    Attributes:
        tokens: token ids kept.
        calls: recorded.
        leaves: how many trajectories there are.
        written_out: tokens of all trajectories, common ones counted in each.
        cuts: calls that go on from an earlier answer without its tokens, by reason.
    """

    def __init__(self) -> None:
        self._turns: list[Turn] = []  # parents before children
        self._children: dict[Turn | None, list[Turn]] = {}
        self.calls = self.tokens = self.leaves = self.written_out = 0
        self.cuts: Counter[CutReason] = Counter()

    def record(self, call: RecordedCall) -> CallKind:
        """Add a call with at least one answer and say how it joined."""
        self.calls += 1
        parent = self._deepest(array("i", call.prompt_token_ids))
        siblings = self._children.setdefault(parent, [])
        if parent is not None and not siblings:
            self.leaves -= 1
            self.written_out -= parent.depth
        put = array("i", call.prompt_token_ids[parent.depth if parent else 0 :])
        # The same prompt is kept once, however many answers it gets.
        same = next((turn.put for turn in siblings if turn.put == put), None)
        kind = self._kind(call, parent, asked_before=same is not None)
        call = replace(call, cut=self._cut(call, kind))
        if call.cut is not None:
            self.cuts[call.cut] += 1
        self.tokens += len(put) if same is None else 0
        for choice in call.choices:
            turn = Turn(
                choice,
                put=put if same is None else same,
                parent=parent,
                kind=kind,
                call=call,
                number=self.calls,
            )
            self._turns.append(turn)
            siblings.append(turn)
            self.tokens += len(turn.sampled)
            self.leaves += 1
            self.written_out += turn.depth
        return kind

    def newest_tokens(self) -> int:
        """Tokens of the newest answer; 0 if there is none."""
        return len(self._turns[-1].sampled) if self._turns else 0

    def start(self, history: History) -> RecordedStart | CutReason | None:
        """The recorded tokens that a new call goes on from.

        Returns:
            These; or why it cannot go on from an answer that it repeats; None: it repeats none.
        """
        found: Turn | None = None
        for turn in reversed(self._turns):  # of equals the newest one
            longer = found is None or turn.mark.length > found.mark.length
            if longer and history.repeats(turn.mark, turn.answer):
                found = turn
        known = 0 if found is None else found.mark.length
        if any(
            turn.mark.length > known and history.goes_on_from(turn.mark, turn.text)
            for turn in self._turns
        ):
            return "edited"
        if found is None:
            return None
        if found.mark.settings != history.settings:
            return "settings"
        messages = history.through(found.mark.length)
        return RecordedStart(token_ids=found.token_ids(), messages=messages)

    def reading(self) -> "TrajectoryReading":
        """What is recorded now, to be written out."""
        return TrajectoryReading(self._turns)

    def _deepest(self, prompt: "array[int]") -> Turn | None:
        found: Turn | None = None
        ahead = list(self._children.get(None, ()))
        while ahead:
            turn = ahead.pop()
            if turn.begins(prompt):
                ahead += self._children.get(turn, ())
                if found is None or turn.depth > found.depth:
                    found = turn
        return found

    def _kind(self, call: RecordedCall, parent: Turn | None, *, asked_before: bool) -> CallKind:
        if not self._turns:
            return "first"
        if asked_before:
            return "resampled"
        if parent is not None and not self._children[parent]:
            return "extended"
        known = parent.mark.length if parent else 0
        if any(
            turn.mark.length > known and call.history.goes_on_from(turn.mark, turn.text)
            for turn in self._turns
        ):
            return "retokenized"
        return "branched" if parent else "other_history"

    def _cut(self, call: RecordedCall, kind: CallKind) -> CutReason | None:
        """Why a call that joined so begins a trajectory, if it goes on from an earlier answer."""
        if kind == "retokenized":
            known = call.cut or self.start(call.history)
            return known if isinstance(known, str) else "template"
        # An API of which nothing is known may well have begun another conversation.
        known_to_go_on = kind in ("branched", "other_history") and call.cut != "api"
        return call.cut if known_to_go_on else None


class TrajectoryReading:
    """The trajectories of a session as it is now; any thread may read it.

    There is one for each leaf, and every sampled token has mask 1 in exactly one of them.
    Answers that several have in common count to the one that samples most after them. All of them
    are far more tokens than the session keeps, so they are made away from the event loop, and some
    at a time.

    Args:
        turns: all answers, parents before children.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = tuple(turns)

    def leaves(self) -> list[Turn]:
        """The answers that end a trajectory, as they came; `depth` is its number of tokens."""
        parents = {turn.parent for turn in self._turns}
        return [turn for turn in self._turns if turn not in parents]

    def trajectories(self, leaves: Sequence[Turn]) -> list[SessionTrajectory]:
        """Those that end with these answers."""
        heirs = self._heirs()
        return [_trajectory(leaf, heirs) for leaf in leaves]

    def _heirs(self) -> dict[Turn, Turn]:
        """The answer after each one that has the most sampled tokens after it."""
        weights: dict[Turn, int] = {}
        heirs: dict[Turn, Turn] = {}
        for turn in reversed(self._turns):
            heir = heirs.get(turn)
            weights[turn] = len(turn.sampled) + (weights[heir] if heir else 0)
            parent = turn.parent
            # Of equals the one that came first, which this meets last.
            if parent and (parent not in heirs or weights[turn] >= weights[heirs[parent]]):
                heirs[parent] = turn
        return heirs


def _trajectory(leaf: Turn, heirs: Mapping[Turn, Turn]) -> SessionTrajectory:
    path, own = [leaf], leaf
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    while own.parent is not None and heirs[own.parent] is own:
        own = own.parent
    path.reverse()
    response: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    spans: list[Span] = []
    turns: list[tuple[int, int]] = []
    shared = 0
    for turn in path:
        put = turn.put if turn.parent else array("i")
        spans += _moved(turn.spans, len(response), len(put))
        response += [*put, *turn.sampled]
        logprobs += [*[0.0] * len(put), *turn.logprobs]
        turns.append((len(response), turn.number))
        mine = turn.turns >= own.turns
        mask += [0] * len(put) + [int(mine)] * len(turn.sampled)
        shared = shared if mine else len(response)
    return SessionTrajectory(
        prompt_token_ids=list(path[0].put),
        response_token_ids=response,
        behaviour_logprobs=logprobs,
        loss_mask=mask,
        spans=spans,
        finish_reason=leaf.finish_reason,
        text=leaf.text,
        begun_by=own.kind,
        cut=own.cut,
        calls=len(path),
        turns=turns,
        shared_tokens=shared,
    )


def _moved(spans: Sequence[Span], at: int, put: int) -> list[Span]:
    """Spans of an answer that begins after `at` + `put` tokens; the first takes in the `put`.

    What was put there was read, never sampled, by the policy of the span that follows.
    """
    moved = [(v, at + put + start, at + put + end, name) for v, start, end, name in spans]
    version, _, end, name = moved[0]
    return [(version, at, end, name), *moved[1:]]
