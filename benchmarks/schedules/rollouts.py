"""The router and its replicas in the scheduling benchmark, in virtual time."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.schedules.bus import Bus
from benchmarks.schedules.hardware import LONGEST, simulated
from millrace_tools.simulation.hardware import Groups, Hardware
from services.orchestrator.rollout.rollout import Arrived, RolloutRequest
from services.protocol.trajectory import PolicySpan, Trajectory

_TOKENS = tuple(range(LONGEST + 1))
_LOGPROBS = (-0.5,) * (LONGEST + 1)
_MASK = (1,) * (LONGEST + 1)


@dataclass(kw_only=True, eq=False)
class Answer:
    """One answer on its way.

    Attributes:
        session: of the request that asked for it.
        place: among all answers, in the order in which they were asked for.
        left: tokens, which are seconds, still to be sampled.
        pieces: when sampling began, and for how long, before each interruption and at last.
        timer: of the piece being sampled.
    """

    session: str
    place: int
    index: int
    tokens: int
    left: float
    arrived: Callable[["Answer"], None]
    began: float = 0.0
    pieces: list[tuple[float, float]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    waits: bool = False


class Rollouts:
    """The router and its replicas; a `Sampler` in which an answer costs a timer, no task.

    An interrupted answer keeps its tokens, and goes on before all that wait as soon as every
    replica serves the version that it waits for.
    """

    def __init__(self, hardware: Hardware, trace: Groups, bus: Bus) -> None:
        self._hardware = hardware
        self._trace = trace
        self._bus = bus
        self._busy = self._asked = 0
        self._queue: deque[Answer] = deque()
        self._sessions: dict[str, list[Answer]] = {}
        self._held: list[Answer] = []
        self.began: float | None = None

    async def __aenter__(self) -> "Rollouts":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """See `Sampler`."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = request.n

        def finished(answer: Answer) -> None:
            nonlocal left
            arrived(answer.index, self._trajectory(answer))
            left -= 1
            if not left and not over.done():
                over.set_result(None)

        answers = self._ask(request, finished)
        try:
            await over
        finally:
            del self._sessions[request.session]
            for answer in answers:  # of a rollout that was given up
                self._stop(answer)
                answer.left = 0.0
            self._serve()

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """See `Sampler`."""
        self._interrupt(request.session, min_version)
        return 0

    @simulated
    def _ask(self, request: RolloutRequest, arrived: Callable[[Answer], None]) -> list[Answer]:
        evaluation = request.n == 1
        group_id = 0 if evaluation else int(request.session.split("-")[-2])
        if self.began is None and not evaluation:
            self.began = asyncio.get_running_loop().time()
        answers = []
        for index, tokens in enumerate(self._trace.group(group_id).tokens[: request.n]):
            self._asked += 1
            answers.append(
                Answer(
                    session=request.session,
                    place=self._asked,
                    index=index,
                    tokens=tokens,
                    left=tokens,
                    arrived=arrived,
                )
            )
        self._sessions[request.session] = answers
        self._queue += answers
        self._serve()
        return answers

    @simulated
    def _interrupt(self, session: str, min_version: int) -> None:
        for answer in self._sessions.get(session, ()):
            if answer.left:
                self._stop(answer)
                answer.waits = True
                self._held.append(answer)
        self._bus.when(min_version, self._go_on)

    def _go_on(self) -> None:
        """Those that have begun before those that have not, each in the order of arrival."""
        self._held.sort(key=lambda answer: (not answer.pieces, answer.place), reverse=True)
        for answer in self._held:
            answer.waits = False
        self._queue.extendleft(self._held)
        self._held = []
        self._serve()

    def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and self._busy < self._hardware.sequences:
            answer = self._queue.popleft()
            if answer.waits or answer.timer or not answer.left:
                continue
            self._busy += 1
            answer.began = loop.time()
            answer.timer = loop.call_later(answer.left, self._end, answer)

    def _stop(self, answer: Answer) -> None:
        """Nothing more of this answer is sampled."""
        if answer.timer is not None:
            answer.timer.cancel()
            self.put_down(answer, asyncio.get_running_loop().time() - answer.began)

    def put_down(self, answer: Answer, seconds: float) -> None:
        """Nothing of it is sampled any more, after this many seconds."""
        answer.pieces.append((answer.began, seconds))
        answer.left = max(0.0, answer.left - seconds)
        answer.timer = None
        self._busy -= 1

    def _end(self, answer: Answer) -> None:
        self._ended(answer)
        answer.arrived(answer)

    @simulated
    def _ended(self, answer: Answer) -> None:
        self.put_down(answer, answer.left)
        self._serve()

    @simulated
    def _trajectory(self, answer: Answer) -> Trajectory:
        spans: list[PolicySpan] = []
        done = 0.0
        for began, seconds in answer.pieces:
            for version, until in self._bus.served(began, began + seconds):
                start = spans[-1].end if spans else 0
                end = min(answer.tokens, round(done + until - began))
                if end > start:
                    spans.append(
                        PolicySpan(version=version, start=start, end=end, replica_id="replica")
                    )
            done += seconds
        return Trajectory(
            prompt_token_ids=(1, 2, 3),
            response_token_ids=_TOKENS[: answer.tokens],
            behaviour_logprobs=_LOGPROBS[: answer.tokens],
            loss_mask=_MASK[: answer.tokens],
            spans=tuple(spans),
            finish_reason="stop",
            text="good" if answer.index % 2 else "bad",
        )
