"""One engine: its speed, and its death in the middle of an answer."""

import asyncio
import contextlib
import io
import os
import signal
import time
from collections.abc import Iterator

from millrace_tools.accept.answers import Answer, Answers
from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.services import MODEL, Services
from millrace_tools.accept.stage import Outcome, Stage

_AT_ONCE, _TOKENS = 32, 256
_QUICK_TOKENS = 64
_LONG = 900  # so long that the answer is under way when its engine dies


def speed(bench: Bench, deadline: Deadline) -> Outcome:
    """Tokens a second of one engine under load, while the others are paused."""
    services, tokens = bench.running, _QUICK_TOKENS if bench.quick else _TOKENS

    async def ask() -> tuple[list[Answer], float]:
        async with Answers(services.url, MODEL) as answers:
            await answers.several(1, tokens)
            began = time.monotonic()
            found = await answers.several(_AT_ONCE, tokens)
            return found, time.monotonic() - began

    services.wait_until_whole(deadline)
    with _one_engine(services, deadline):
        found, seconds = asyncio.run(asyncio.wait_for(ask(), deadline.left_s("the answers")))
    services.wait_until_whole(deadline)
    short = sum(one.tokens != tokens for one in found)
    figures = (
        Figure(name="speed", value=_AT_ONCE * tokens / seconds, unit="tokens/s"),
        Figure(name="answers at once", value=_AT_ONCE),
        Figure(name="tokens of each", value=tokens),
    )
    problem = f"{short} answers of {len(found)} have not {tokens} tokens" if short else ""
    return Outcome(figures=figures, problem=problem)


@contextlib.contextmanager
def _one_engine(services: Services, deadline: Deadline) -> Iterator[None]:
    """Inside, all engines but one are paused."""
    paused = [one.replica_id for one in services.table().leased[1:]]
    try:
        for replica in paused:
            services.order(replica, "pause", deadline)
        yield
    finally:
        for replica in paused:
            services.order(replica, "resume", deadline)


def death(bench: Bench, deadline: Deadline) -> Outcome:
    """Kill an engine after the first token of an answer: the answer goes on elsewhere."""
    services, entered = bench.running, time.monotonic()
    services.wait_until_whole(deadline)
    pids = {one.replica_id: one.pid for one in services.table().members}
    killed: list[str] = []

    def kill(replica: str) -> None:
        os.kill(pids[replica], signal.SIGKILL)
        killed.append(replica)

    async def ask() -> Answer:
        async with Answers(services.url, MODEL) as answers:
            return await answers.one(_LONG, kill)

    with contextlib.redirect_stdout(io.StringIO()):  # Ray tells of the death there
        answer = asyncio.run(asyncio.wait_for(ask(), deadline.left_s("the rest of the answer")))
        began = time.monotonic()
        services.wait_until_replaced(killed[0], deadline)
    waited = answer.arrivals_s[0] - entered  # it got so far, or nothing was killed
    figures = (
        Figure(name="until its first piece", value=waited, unit="s"),
        Figure(name="longest gap", value=answer.longest_gap_s, unit="s"),
        Figure(name="whole answer", value=answer.seconds, unit="s"),
        Figure(name="engines of the answer", value=len(answer.replicas)),
        Figure(name="tokens", value=answer.tokens),
        Figure(name="until it is replaced", value=time.monotonic() - began, unit="s"),
    )
    return Outcome(figures=figures, problem=_lost(answer))


def _lost(answer: Answer) -> str:
    if answer.tokens != _LONG:
        return f"the answer has {answer.tokens} tokens, not {_LONG}"
    if len(answer.replicas) < 2:
        return "the answer ended on the engine that was killed: it was too short to show anything"
    return ""


STAGES = (
    Stage(
        name="engine",
        purpose="how fast one engine answers",
        deadline_s=300.0,
        run=speed,
        services=True,
    ),
    Stage(
        name="kill",
        purpose="an answer whose engine is killed goes on with no token lost",
        deadline_s=600.0,
        run=death,
        services=True,
    ),
)
