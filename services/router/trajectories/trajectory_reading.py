"""What a session has recorded, written out as trajectories.

They are far more tokens than the session keeps: answers in common are in every one of them. So
they are made away from the event loop, and some at a time.
"""

from array import array
from collections.abc import Mapping, Sequence

from services.protocol.session import SessionTrajectory
from services.router.answering.journal import Span
from services.router.trajectories.turn import Turn


class TrajectoryReading:
    """The trajectories of a session as it is now; any thread may read it.

    There is one for each leaf, and every sampled token has mask 1 in exactly one of them.
    Answers that several have in common count to the one that samples most after them.

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
    shared = 0
    for turn in path:
        put = turn.put if turn.parent else array("i")
        spans += _moved(turn.spans, len(response), len(put))
        response += [*put, *turn.sampled]
        logprobs += [*[0.0] * len(put), *turn.logprobs]
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
        calls=len(path),
        shared_tokens=shared,
    )


def _moved(spans: Sequence[Span], at: int, put: int) -> list[Span]:
    """Spans of an answer that begins after `at` + `put` tokens; the first takes in the `put`.

    What was put there was read, never sampled, by the policy of the span that follows.
    """
    moved = [(v, at + put + start, at + put + end, name) for v, start, end, name in spans]
    version, _, end, name = moved[0]
    return [(version, at, end, name), *moved[1:]]
