"""The batch of a train step: all its tokens in a few flat arrays.

A token of an answer takes 8 bytes and a bit, and a batch of millions of tokens is a handful of
objects, which Ray's object store hands over without a copy.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from services.protocol.trajectory import Trajectory

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ScoredTrajectory:
    """A trajectory and its reward. Infrastructure failures never get here.

    Attributes:
        stale_tokens: sampled tokens whose loss mask is 0 because they are too old.
        teacher: the teacher's logprob of each token of the answer; None without a teacher.
        given: its answer was not sampled, and is learned from as it is.
        named: rewards that are normalised each by itself, as many of every trajectory of a run.
        returns: of each turn, or each response token with credit by token, one past its last
            response token, and the sum of the rewards from it on; empty where all tokens have the
            reward. The last one ends with the response.
    """

    trajectory: Trajectory
    reward: float
    stale_tokens: int = 0
    teacher: tuple[float, ...] | None = None
    given: bool = False
    named: tuple[float, ...] = ()
    returns: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """A sample group: the trajectories of one prompt.

    Attributes:
        group_id: the ledger's name for it.
        trajectories: at least `AlgorithmConfig.smallest_group`.
    """

    group_id: int
    trajectories: tuple[ScoredTrajectory, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRows:
    """S rows of tokens, each a prompt and the answer to it.

    Attributes:
        ids: int32 `[T]`, row after row, the prompt before its answer.
        logprobs: float32 `[R]`, behaviour logprobs of the answers' tokens, natural log.
        mask: uint8, the loss mask of the answers' tokens, a bit each, highest first; every
            row begins a byte, and bits that fill its last one are 0.
        prompt: int32 `[S]`, tokens of each prompt.
        answer: int32 `[S]`, tokens of each answer.
        spans: int32 `[S]`, policy spans of each answer.
        span_version: int32 `[P]`, the policy version of each span.
        span_tokens: int32 `[P]`, its tokens.
        teacher: float32 `[R]`, a teacher's logprobs of the answers' tokens; empty without one.
        turns: int32 `[S]`, turns of each answer, with credit by token as many as it has tokens; 0
            where all its tokens have one reward.
        turn_tokens: int32 `[U]`, response tokens of each turn.
        turn_return: float64 `[U]`, the sum of the rewards from it on, or the advantage that is made
            of it.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    mask: NDArray[np.uint8]
    prompt: NDArray[np.int32]
    answer: NDArray[np.int32]
    spans: NDArray[np.int32]
    span_version: NDArray[np.int32]
    span_tokens: NDArray[np.int32]
    turns: NDArray[np.int32]
    turn_tokens: NDArray[np.int32]
    turn_return: NDArray[np.float64]
    teacher: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))

    def __post_init__(self) -> None:
        """Refuse arrays whose sizes disagree."""
        rows = {len(one) for one in self._counts()}
        sizes = [total(part) for part in self._per_row()]
        held = [len(one) for one in self._arrays()]
        covered = {total(one) for one in (self.span_tokens, self.turn_tokens) if len(one)}
        if len(rows) != 1 or sizes != held or covered - {len(self.logprobs)}:
            raise ValueError(f"arrays of {rows} rows should hold {sizes} elements, not {held}")

    def __len__(self) -> int:
        """S."""
        return len(self.prompt)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(one.nbytes for one in (*self._arrays(), *self._counts()))

    @property
    def lengths(self) -> Ints:
        """int64 `[S]`, tokens of prompt and answer."""
        return self.prompt.astype(np.int64) + self.answer

    def trained(self) -> Ints:
        """int64 `[S]`, tokens of each row with a bit in the mask."""
        counts = starts(np.bitwise_count(self.mask))
        begins = starts(self._mask_bytes())
        return counts[begins[1:]] - counts[begins[:-1]]

    def kept(self) -> Ints:
        """int64 `[N]`, the places among all answers' tokens that have a bit in the mask."""
        bits = np.unpackbits(self.mask)
        fill = 8 * starts(self._mask_bytes())[:-1] - starts(self.answer)[:-1]
        return np.flatnonzero(bits[np.arange(len(self.logprobs)) + fill.repeat(self.answer)])

    def take(self, order: Ints) -> Self:
        """The rows with these indexes, in their order; a copy."""
        begins = [starts(part) for part in self._per_row()]
        parts = [
            _gathered(one, begin, order) for one, begin in zip(self._arrays(), begins, strict=True)
        ]
        return self._of(parts, [one[order] for one in self._counts()])

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """The rows in pieces of so many rows each, in order; views of these arrays."""
        cuts = np.array([0, *np.cumsum(sizes, dtype=np.int64)])
        begins = [starts(part)[cuts].tolist() for part in self._per_row()]
        pieces = []
        for index, (first, last) in enumerate(pairwise(cuts)):
            parts = [
                one[begin[index] : begin[index + 1]]
                for one, begin in zip(self._arrays(), begins, strict=True)
            ]
            mine = slice(first, last)
            pieces.append(self._of(parts, [one[mine] for one in self._counts()]))
        return pieces

    def _mask_bytes(self) -> Ints:
        return -(-self.answer.astype(np.int64) // 8)

    def _per_row(self) -> list[Any]:
        """How many elements of each of `_arrays` a row has."""
        taught = self.answer if len(self.teacher) else 0 * self.answer
        spans, turns = [self.spans] * 2, [self.turns] * 2
        return [self.lengths, self.answer, self._mask_bytes(), *spans, *turns, taught]

    def _arrays(self) -> list[Any]:
        spans = [self.span_version, self.span_tokens]
        turns = [self.turn_tokens, self.turn_return]
        return [self.ids, self.logprobs, self.mask, *spans, *turns, self.teacher]

    def _counts(self) -> list[NDArray[np.int32]]:
        return [self.prompt, self.answer, self.spans, self.turns]

    @classmethod
    def _of(cls, arrays: Sequence[Any], counts: Sequence[Any]) -> Self:
        ids, logprobs, mask, span_version, span_tokens, turn_tokens, turn_return, teacher = arrays
        prompt, answer, spans, turns = counts
        return cls(
            ids=ids,
            logprobs=logprobs,
            mask=mask,
            prompt=prompt,
            answer=answer,
            spans=spans,
            span_version=span_version,
            span_tokens=span_tokens,
            turns=turns,
            turn_tokens=turn_tokens,
            turn_return=turn_return,
            teacher=teacher,
        )


def total(counts: NDArray[Any]) -> int:
    """Their sum, as a number of Python."""
    return int(counts.sum(dtype=np.int64))


def starts(counts: NDArray[Any]) -> Ints:
    """int64 `[S + 1]`: where each of S neighbours with so many elements begins, and the end."""
    begins = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


def _gathered(values: NDArray[Any], begins: Ints, order: Ints) -> NDArray[Any]:
    firsts, ends = begins[order].tolist(), begins[order + 1].tolist()
    pieces = [values[first:end] for first, end in zip(firsts, ends, strict=True)]
    return np.concatenate(pieces) if pieces else values[:0]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainBatch:
    """The batch of one train step: G sample groups of S trajectories in all.

    Attributes:
        run_id: the run it belongs to; any other than the started one is refused.
        step: 1-based number of this train step; must be the trainer's step plus one.
        rows: the tokens of the trajectories, group after group.
        group_ids: int64 `[G]`, the ledger's names.
        group_sizes: int32 `[G]`, trajectories of each group.
        rewards: float64 `[S]`.
        named: float64 `[S, K]`, see `ScoredTrajectory`.
        stale_tokens: int32 `[S]`, see `ScoredTrajectory`.
        truncated: bool `[S]`, the answer was cut off by the length limit.
        given: bool `[S]`, see `ScoredTrajectory`; the same for all of a group.
        detailed: ids of the groups whose `TokenDetail`s the report shall hold.
        trace: W3C `traceparent` of the caller's span, empty without one.
    """

    run_id: str
    step: int
    rows: TokenRows
    group_ids: Ints
    group_sizes: NDArray[np.int32]
    rewards: NDArray[np.float64]
    named: NDArray[np.float64]
    stale_tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    given: NDArray[np.bool_]
    detailed: tuple[int, ...] = ()
    trace: str = ""

    def __post_init__(self) -> None:
        """Refuse arrays whose sizes disagree."""
        arrays = (
            self.rows,
            self.rewards,
            self.named,
            self.stale_tokens,
            self.truncated,
            self.given,
        )
        per_row = {len(one) for one in arrays}
        if per_row != {total(self.group_sizes)} or len(self.group_ids) != len(self.group_sizes):
            raise ValueError(f"{total(self.group_sizes)} trajectories, but arrays of {per_row}")


_ROW_ARRAYS = {
    "ids": "i",
    "logprobs": "f",
    "mask": "B",
    "prompt": "i",
    "answer": "i",
    "spans": "i",
    "span_version": "i",
    "span_tokens": "i",
    "turns": "i",
    "turn_tokens": "i",
    "turn_return": "d",
    "teacher": "f",
}
_GROUP_ARRAYS = {
    "group_ids": "q",
    "group_sizes": "i",
    "rewards": "d",
    "named": "d",
    "stale_tokens": "i",
    "truncated": "B",
    "given": "B",
}


@dataclass(kw_only=True)
class BatchBuilder:
    """Lays sample groups into the arrays of a batch, one group after another."""

    run_id: str
    step: int
    _rows: "dict[str, array[Any]]" = field(
        default_factory=lambda: {name: array(code) for name, code in _ROW_ARRAYS.items()}
    )
    _groups: "dict[str, array[Any]]" = field(
        default_factory=lambda: {name: array(code) for name, code in _GROUP_ARRAYS.items()}
    )

    def add(self, group: TrainGroup) -> None:
        """Append a group."""
        self._groups["group_ids"].append(group.group_id)
        self._groups["group_sizes"].append(len(group.trajectories))
        for one in group.trajectories:
            self._groups["rewards"].append(one.reward)
            self._groups["named"].extend(one.named)
            self._groups["stale_tokens"].append(one.stale_tokens)
            self._groups["truncated"].append(one.trajectory.finish_reason == "length")
            self._groups["given"].append(one.given)
            self._add_tokens(one.trajectory)
            self._rows["teacher"].extend(one.teacher or ())
            self._rows["turns"].append(len(one.returns))
            for (begin, _), (end, value) in pairwise(((0, 0.0), *one.returns)):
                self._rows["turn_tokens"].append(end - begin)
                self._rows["turn_return"].append(value)

    def _add_tokens(self, one: Trajectory) -> None:
        rows = self._rows
        rows["ids"].extend(one.prompt_token_ids)
        rows["ids"].extend(one.response_token_ids)
        rows["logprobs"].extend(one.behaviour_logprobs)
        rows["mask"].frombytes(np.packbits(np.frombuffer(bytes(one.loss_mask), np.bool_)).tobytes())
        rows["prompt"].append(len(one.prompt_token_ids))
        rows["answer"].append(len(one.response_token_ids))
        rows["spans"].append(len(one.spans))
        rows["span_version"].extend(span.version for span in one.spans)
        rows["span_tokens"].extend(span.end - span.start for span in one.spans)

    def batch(self, detailed: tuple[int, ...] = (), trace: str = "") -> TrainBatch:
        """The batch of the groups that were added."""
        groups: dict[str, Any] = {name: _view(one) for name, one in self._groups.items()}
        count = len(groups["rewards"])
        groups["named"] = groups["named"].reshape(count, len(groups["named"]) // max(1, count))
        for name in ("truncated", "given"):
            groups[name] = groups[name].view(np.bool_)
        return TrainBatch(
            run_id=self.run_id,
            step=self.step,
            rows=TokenRows(**{name: _view(one) for name, one in self._rows.items()}),
            **groups,
            detailed=detailed,
            trace=trace,
        )


def _view(values: "array[Any]") -> NDArray[Any]:
    return np.frombuffer(values, dtype=values.typecode)
