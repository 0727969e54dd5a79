"""The calls of one session as trajectories: pure, by token ids alone.

A call goes on from an earlier answer if its prompt begins with that answer's prompt and
tokens, one for one. Answers therefore form trees, and every leaf ends one trajectory.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from services.protocol.session import CallKind
from services.router.trajectories.history import History
from services.router.trajectories.trajectory_reading import TrajectoryReading
from services.router.trajectories.turn import RecordedChoice, Turn


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One finished call.

    Attributes:
        prompt_token_ids: the whole rendered prompt.
        choices: its answers, several with `n` > 1.
        history: what the client sent, to tell why a prompt goes on from no earlier answer.
    """

    prompt_token_ids: Sequence[int]
    choices: Sequence[RecordedChoice]
    history: History


class TrajectoryTree:
    """Everything that one session recorded.

    Attributes:
        tokens: token ids kept.
        leaves: how many trajectories there are.
        written_out: tokens of all trajectories, common ones counted in each.
    """

    def __init__(self) -> None:
        self._turns: list[Turn] = []  # parents before children
        self._children: dict[Turn | None, list[Turn]] = {}
        self.tokens = self.leaves = self.written_out = 0

    def record(self, call: RecordedCall) -> CallKind:
        """Add a call with at least one answer and say how it joined."""
        parent = self._deepest(array("i", call.prompt_token_ids))
        siblings = self._children.setdefault(parent, [])
        if parent is not None and not siblings:
            self.leaves -= 1
            self.written_out -= parent.depth
        put = array("i", call.prompt_token_ids[parent.depth if parent else 0 :])
        # The same prompt is kept once, however many answers it gets.
        same = next((turn.put for turn in siblings if turn.put == put), None)
        kind = self._kind(call, parent, asked_before=same is not None)
        self.tokens += len(put) if same is None else 0
        for choice in call.choices:
            turn = Turn(
                choice,
                put=put if same is None else same,
                parent=parent,
                kind=kind,
                mark=call.history.mark,
            )
            self._turns.append(turn)
            siblings.append(turn)
            self.tokens += len(turn.sampled)
            self.leaves += 1
            self.written_out += turn.depth
        return kind

    def reading(self) -> TrajectoryReading:
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
