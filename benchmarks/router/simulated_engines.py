"""Simulated replicas: continuous batching with a prefix cache, in simulated seconds.

Decoding is memory-bound: a step takes `STEP_S` plus `STEP_PER_SEQUENCE_S` for each running
sequence. Prefill goes first come, first served, and slows decoding down while it lasts. The KV
cache of running sequences is pinned, the rest stays as prefix cache until the least recently
used of it is needed.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from millrace_tools.simulation.clock import Clock
from services.router.request.needs import PromptPrefix

CACHE_TOKENS = 262_144
PREFILL_PER_S = 20_000.0
STEP_S = 0.02
STEP_PER_SEQUENCE_S = 0.0003
DECODE_SHARE = 0.4  # of its speed that decoding keeps beside a prefill
MAX_SEQUENCES = 256

Segment = tuple[str, int]
"""Name of a piece of text and its length in tokens; equal names are equal text."""


@dataclass(eq=False)
class Call:
    """One request to a model: its prompt, and the answer that it is going to make."""

    prompt: tuple[Segment, ...]
    answer: Segment
    session: str | None
    prefix: PromptPrefix
    done: Callable[[float], None]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(length for _, length in self.prompt)


class PrefixCache:
    """The prefixes that one replica keeps; a piece of text is kept or dropped as a whole."""

    def __init__(self) -> None:
        self._pins: dict[Segment, int] = {}
        self._free: OrderedDict[Segment, None] = OrderedDict()
        self._pinned = self._held = 0

    def cached(self, pieces: tuple[Segment, ...]) -> int:
        """How many of the first tokens are there."""
        tokens = 0
        for piece in pieces:
            if piece not in self._pins and piece not in self._free:
                break
            tokens += piece[1]
        return tokens

    def pin(self, pieces: tuple[Segment, ...]) -> bool:
        """Take the pieces for a running sequence, if they fit."""
        new = [piece for piece in pieces if piece not in self._pins]
        needed = sum(length for _, length in new)
        if self._pins and self._pinned + needed > CACHE_TOKENS:
            return False
        self._pinned += needed
        for piece in new:
            if piece in self._free:
                del self._free[piece]
            else:
                self._held += piece[1]
        for piece in pieces:
            self._pins[piece] = self._pins.get(piece, 0) + 1
        while self._free and self._held > CACHE_TOKENS:
            (_, length), _ = self._free.popitem(last=False)
            self._held -= length
        return True

    def unpin(self, pieces: tuple[Segment, ...]) -> None:
        """The sequence has ended; its last pieces are the first to be dropped."""
        for piece in reversed(pieces):
            self._pins[piece] -= 1
            if not self._pins[piece]:
                del self._pins[piece]
                self._free[piece] = None
                self._pinned -= piece[1]


class Engine:
    """One replica."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cache = PrefixCache()
        self._waiting: deque[Call] = deque()
        self._prefilling: Call | None = None
        self._running: list[tuple[float, int, Call]] = []
        self._progress, self._since, self._epoch, self._number = 0.0, 0.0, 0, 0
        self.prompt_tokens = self.cached_tokens = 0

    def submit(self, call: Call) -> None:
        """A request arrives."""
        self._advance()
        self._waiting.append(call)
        self._admit()
        self._plan()

    def _advance(self) -> None:
        self._progress += (self._clock.now - self._since) * self._speed()
        self._since = self._clock.now

    def _speed(self) -> float:
        step = STEP_S + STEP_PER_SEQUENCE_S * len(self._running)
        return (DECODE_SHARE if self._prefilling else 1.0) / step

    def _admit(self) -> None:
        while self._prefilling is None and self._waiting:
            call = self._waiting[0]
            cached = self._cache.cached(call.prompt)
            full = len(self._running) >= MAX_SEQUENCES
            if full or not self._cache.pin((*call.prompt, call.answer)):
                return
            self._waiting.popleft()
            self.prompt_tokens += call.prompt_tokens
            self.cached_tokens += cached
            missing = max(1, call.prompt_tokens - cached)
            self._prefilling = call
            self._clock.after(missing / PREFILL_PER_S, self._prefilled)

    def _prefilled(self) -> None:
        self._advance()
        call, self._prefilling = self._prefilling, None
        assert call is not None
        self._number += 1
        heapq.heappush(self._running, (self._progress + call.answer[1], self._number, call))
        self._admit()
        self._plan()

    def _plan(self) -> None:
        """Foresee the next end; what changes the speed before makes a new plan."""
        self._epoch += 1
        if self._running:
            left = max(0.0, self._running[0][0] - self._progress)
            epoch = self._epoch
            self._clock.after(left / self._speed(), lambda: self._ended(epoch))

    def _ended(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._advance()
        _, _, call = heapq.heappop(self._running)
        self._cache.unpin((*call.prompt, call.answer))
        self._admit()
        self._plan()
        call.done(self._clock.now)
