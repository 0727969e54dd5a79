"""Spans of a request's parts; nothing but a few calls where tracing is off."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from services.observability import tracing
from services.observability.tracing import Span
from services.router.errors import UpstreamBroken
from services.router.request.trace_context import TRACE


def request_span(name: str) -> AbstractContextManager[Span]:
    """A part of the request that the current task works for."""
    return tracing.span(name, TRACE.get())


class Segment:
    """What one replica does for a request: it is sent this span as its own's parent.

    A context manager. It stands inside of generators, which may be closed from another task
    than the one that they ran in, so nothing of a task's but `TRACE` is changed.

    Args:
        name: `generate`, or `failover` for the rest of an answer.
        replica_id: the replica.
        renders: it is sent messages, not tokens.
    """

    def __init__(self, name: str, replica_id: str, *, renders: bool = False) -> None:
        self._name, self._replica_id, self._renders = name, replica_id, renders
        self._span, self._render = tracing.OFF, tracing.OFF
        self._came: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        if tracing.is_on():
            self._came = TRACE.get()
            self._span = tracing.begin(self._name, self._came, replica=self._replica_id)
            if self._renders:
                self._render = tracing.begin("render", self._span.headers)
            TRACE.set(self._span.headers)
        return self

    def rendered(self, tokens: int) -> None:
        """The replica has reported the tokens of the prompt."""
        self._render.set(tokens=tokens)
        self._render.end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, UpstreamBroken):
            self._span.fail(error.reason)
        elif kind is not None and kind is not GeneratorExit:
            self._span.fail(kind.__name__)
        self._render.end()
        self._span.end()
        if tracing.is_on():
            TRACE.set(self._came)
