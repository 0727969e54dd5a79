"""Simulated replicas: continuous batching with a prefix cache, in simulated seconds.

Decoding is memory-bound: a step takes `STEP_S` plus `STEP_PER_SEQUENCE_S` for each running
sequence. Prefill goes first come, first served, and slows decoding down while it lasts. KV
blocks of running sequences are pinned, the others stay as prefix cache until the least
recently used of them are needed.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.router.opening import Opening

BLOCK = 128  # tokens
BLOCKS = 2048
PREFILL_PER_S = 20_000.0
STEP_S = 0.02
STEP_PER_SEQUENCE_S = 0.0003
DECODE_SHARE = 0.4  # of its speed that decoding keeps beside a prefill
MAX_SEQUENCES = 256

Segment = tuple[str, int]
"""Name of a piece of text and its length in tokens; equal names are equal text."""


@dataclass(eq=False)
class Call:
    """One request to a model: its prompt, and how many tokens it is going to make."""

    prompt: tuple[Segment, ...]
    makes: int
    session: str | None
    opening: Opening
    done: Callable[[float], None]
    arrived: float = 0.0
    blocks: list[tuple[str, int]] = field(default_factory=list)
    cached: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(length for _, length in self.prompt)


class Clock:
    """Simulated time: what happens next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, what))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()


class PrefixCache:
    """KV blocks of one replica."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, int], int] = {}
        self._free: OrderedDict[tuple[str, int], None] = OrderedDict()

    def cached(self, blocks: list[tuple[str, int]]) -> int:
        """How many of the first blocks are there."""
        count = 0
        for block in blocks:
            if block not in self._pins and block not in self._free:
                break
            count += 1
        return count

    def pin(self, blocks: list[tuple[str, int]]) -> bool:
        """Take the blocks for a running sequence, if there is room."""
        new = [block for block in blocks if block not in self._pins]
        if len(self._pins) + len(new) > BLOCKS and self._pins:
            return False
        for block in new:
            self._free.pop(block, None)
        for block in blocks:
            self._pins[block] = self._pins.get(block, 0) + 1
        while self._free and len(self._pins) + len(self._free) > BLOCKS:
            self._free.popitem(last=False)
        return True

    def unpin(self, blocks: list[tuple[str, int]]) -> None:
        """The sequence has ended; its last blocks are the first to be dropped."""
        for block in reversed(blocks):
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
                self._free[block] = None


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
            blocks = _blocks(call)
            cached = self._cache.cached(blocks[: call.prompt_tokens // BLOCK])
            if len(self._running) >= MAX_SEQUENCES or not self._cache.pin(blocks):
                return
            self._waiting.popleft()
            call.blocks, call.cached = blocks, cached * BLOCK
            self.prompt_tokens += call.prompt_tokens
            self.cached_tokens += call.cached
            missing = max(1, call.prompt_tokens - call.cached)
            self._prefilling = call
            self._clock.at(self._clock.now + missing / PREFILL_PER_S, self._prefilled)

    def _prefilled(self) -> None:
        self._advance()
        call, self._prefilling = self._prefilling, None
        assert call is not None
        self._number += 1
        heapq.heappush(self._running, (self._progress + call.makes, self._number, call))
        self._admit()
        self._plan()

    def _plan(self) -> None:
        """Foresee the next end; what changes the speed before makes a new plan."""
        self._epoch += 1
        if self._running:
            left = max(0.0, self._running[0][0] - self._progress)
            epoch = self._epoch
            self._clock.at(self._clock.now + left / self._speed(), lambda: self._ended(epoch))

    def _ended(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._advance()
        _, _, call = heapq.heappop(self._running)
        self._cache.unpin(call.blocks)
        self._admit()
        self._plan()
        call.done(self._clock.now)


def _blocks(call: Call) -> list[tuple[str, int]]:
    """Blocks of prompt and answer; a piece of text that is not a whole block is left out."""
    pieces = (*call.prompt, (f"{call.session or id(call)}/{call.prompt_tokens}", call.makes))
    return [(name, number) for name, length in pieces for number in range(length // BLOCK)]
