"""Agents that ask for rollouts: their arrivals, prompts, answers and pauses.

A trace is a list of episodes. An episode is one agent: it calls the model, waits for its
tools, and calls again with all that has been said, until its turns are over.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.router.simulated_engines import Call, Segment
from millrace_tools.simulation.clock import Clock
from services.router.request.needs import PromptPrefix


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One call, and what comes after it.

    Attributes:
        makes: tokens of the answer.
        pause_s: until the next call, while tools run.
        adds: tokens of the tool's result.
    """

    makes: int
    pause_s: float = 0.0
    adds: int = 0


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One agent.

    Attributes:
        name: unique in the trace.
        starts: when its first call comes, seconds.
        prompt: its first prompt: the system's, the task's.
        turns: its calls.
        named: its calls carry `x-session-id`.
    """

    name: str
    starts: float
    prompt: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    named: bool = True

    def play(self, clock: Clock, submit: Callable[[Call], None]) -> None:
        """Make the calls, one after another."""

        def call(prompt: tuple[Segment, ...], number: int) -> None:
            turn = self.turns[number]
            answer = (f"{self.name}/{number} says", turn.makes)

            def done(now: float) -> None:
                if number + 1 < len(self.turns):
                    more = (*prompt, answer, (f"{self.name}/{number} hears", turn.adds))
                    clock.at(now + turn.pause_s, lambda: call(more, number + 1))

            session = self.name if self.named else None
            submit(Call(prompt, answer, session, prefix=_prefix(prompt), done=done))

        call(self.prompt, 0)


@cache
def _prefix(prompt: tuple[Segment, ...]) -> PromptPrefix:
    """As the router makes it of the messages, which repeat what has been said."""
    texts = [{"role": "user", "content": name} for name, _ in prompt]
    texts[0]["role"] = "system"
    return PromptPrefix.of({"messages": texts})


def _length(draw: random.Random, median: int, spread: float, most: int) -> int:
    """A length with a long tail."""
    return max(1, min(most, round(draw.lognormvariate(0, spread) * median)))


def _agent_turns(draw: random.Random, most: int) -> tuple[Turn, ...]:
    return tuple(
        Turn(
            makes=_length(draw, 120, 0.8, 1500),
            pause_s=draw.lognormvariate(0, 1.0) * 1.5,
            adds=_length(draw, 300, 1.0, 3000),
        )
        for _ in range(draw.randint(2, most))
    )


def _tasks(draw: random.Random, count: int, lengths: range) -> list[Segment]:
    return [(f"task {number}", draw.choice(lengths)) for number in range(count)]


def groups(draw: random.Random) -> list[Episode]:
    """One step of a run: 64 prompts, 16 answers each, all at once, with a long tail."""
    return [
        Episode(
            name=f"{task}.{one}",
            starts=draw.uniform(0, 0.5),
            prompt=(("system", 640), (task, length)),
            turns=(Turn(makes=_length(draw, 300, 0.9, 4000)),),
            named=False,
        )
        for task, length in _tasks(draw, 64, range(256, 2560))
        for one in range(16)
    ]


def agents(draw: random.Random) -> list[Episode]:
    """Groups of eight agents that use tools, and name their sessions."""
    return [
        Episode(
            name=f"{task}.{one}",
            starts=draw.uniform(0, 5),
            prompt=(("system", 1024), (task, length)),
            turns=_agent_turns(draw, 12),
        )
        for task, length in _tasks(draw, 24, range(128, 1280))
        for one in range(8)
    ]


def nameless(draw: random.Random) -> list[Episode]:
    """The same agents, of a framework that names nothing."""
    return [replace(one, named=False) for one in agents(draw)]


def bursts(draw: random.Random) -> list[Episode]:
    """Bursts of short chats under three system prompts, with quiet in between."""
    episodes = []
    for burst in range(12):
        for one in range(draw.choice((10, 40, 160))):
            episodes.append(
                Episode(
                    name=f"{burst}.{one}",
                    starts=burst * 6 + draw.expovariate(4.0),
                    prompt=((f"system {draw.randrange(3)}", 1280), (f"ask {burst}.{one}", 256)),
                    turns=(Turn(makes=_length(draw, 100, 0.7, 800)),),
                    named=False,
                )
            )
    return episodes


def long_contexts(draw: random.Random) -> list[Episode]:
    """A few agents that read much: each return to a replica without the cache costs."""
    return [
        Episode(
            name=f"{one}",
            starts=draw.uniform(0, 10),
            prompt=(("system", 1024), (f"repository {one}", 64 * draw.randint(60, 250))),
            turns=_agent_turns(draw, 16),
        )
        for one in range(72)
    ]


def stragglers(draw: random.Random) -> list[Episode]:
    """Sessions that come a few at a time, one in ten of them far longer than the others."""
    return [
        Episode(
            name=f"{one}",
            starts=one * 0.12,
            prompt=(("system", 1024), (f"task {one // 4}", 640)),
            turns=_agent_turns(draw, 40 if one % 10 == 0 else 4),
        )
        for one in range(240)
    ]


TRACES = {
    "groups": groups,
    "agents": agents,
    "nameless agents": nameless,
    "bursts": bursts,
    "long contexts": long_contexts,
    "stragglers": stragglers,
}
