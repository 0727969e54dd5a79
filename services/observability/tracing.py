"""OpenTelemetry spans: nothing at all unless a configuration names a collector.

Only what is passed to these functions is exported: no prompt, no answer, no key. Contexts
travel between services as W3C `traceparent`, in headers over HTTP and in a field of messages.
https://www.w3.org/TR/trace-context/
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import Field

from services.protocol.strict import StrictModel

_NS = 1_000_000_000
_MOST_WAITING = 4096
_EXPORT_S = 5.0
_STOP_S = 2.0
_PROPAGATOR = TraceContextTextMapPropagator()
_exporter: Any = None
_tracer: Any = None
_provider: Any = None

Attribute = str | int | float | bool


class TracingConfig(StrictModel):
    """Where spans go.

    Attributes:
        endpoint: base URL of a collector's OTLP receiver over HTTP, such as
            `http://127.0.0.1:4318`. Headers that it asks for come from the environment
            (OTEL_EXPORTER_OTLP_HEADERS).
        ratio: share of traces that are kept, decided where a trace begins.
    """

    endpoint: str = Field(pattern=r"^https?://[^/]")
    ratio: float = Field(default=1.0, ge=0, le=1)

    @property
    def traces_url(self) -> str:
        """Where spans are posted."""
        return self.endpoint.rstrip("/") + "/v1/traces"


class Span:
    """A span; where tracing is off, its methods do nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span = trace.INVALID_SPAN) -> None:
        self._span = span

    @property
    def headers(self) -> dict[str, str]:
        """Headers for calls whose spans are children of this one; empty where tracing is off."""
        carried: dict[str, str] = {}
        if self is not OFF:
            _PROPAGATOR.inject(carried, context=trace.set_span_in_context(self._span))
        return carried

    @property
    def traceparent(self) -> str:
        """The header `traceparent`, for a field of a message."""
        return self.headers.get("traceparent", "")

    def set(self, **attributes: Attribute) -> None:
        """Set attributes."""
        self._span.set_attributes(_named(attributes))

    def event(self, name: str, **attributes: Attribute) -> None:
        """Add an event that happens now."""
        self._span.add_event(name, _named(attributes))

    def fail(self, reason: str) -> None:
        """Set the status to error; `reason` is a short name, never text of a user's."""
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, reason))

    def end(self, at_s: float | None = None) -> None:
        """End the span now, or at a time in seconds since 1970. A second call does nothing."""
        if self._span.is_recording():
            self._span.end(None if at_s is None else int(at_s * _NS))


OFF = Span()


def start(config: TracingConfig | None, *, service: str) -> None:
    """Export this process's spans from now on; None changes nothing.

    Another call in the same process, as of two services in one test, changes nothing either.
    """
    global _tracer, _provider, _exporter
    if config is None or _tracer is not None:
        return
    # The SDK takes a while to import, and most processes never trace.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    _exporter = OTLPSpanExporter(endpoint=config.traces_url, timeout=_EXPORT_S)
    _provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(config.ratio)),
        resource=Resource.create({"service.name": f"millrace.{service}"}),
    )
    # Bounded: the processor drops spans that a slow collector does not take in time.
    _provider.add_span_processor(BatchSpanProcessor(_exporter, max_queue_size=_MOST_WAITING))
    _tracer = _provider.get_tracer("millrace")
    # It would print a traceback for every batch while the collector is away.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


def stop() -> None:
    """Send what waits, within a deadline, and stop tracing."""
    global _tracer, _provider, _exporter
    provider, exporter = _provider, _exporter
    _provider = _tracer = _exporter = None
    if provider is None or exporter is None:
        return
    # By itself the provider tries for half a minute. An exporter that is shut down refuses.
    deadline = threading.Timer(_STOP_S, exporter.shutdown)
    deadline.daemon = True
    deadline.start()
    provider.shutdown()
    deadline.cancel()


def is_on() -> bool:
    """Whether this process traces."""
    return _tracer is not None


def begin(
    name: str,
    parent: Mapping[str, str] | None = None,
    *,
    links: Sequence[str] = (),
    at_s: float | None = None,
    **attributes: Attribute,
) -> Span:
    """Begin a span; the caller ends it.

    Args:
        name: of few kinds.
        parent: headers of another span, `{}` for none; None: the span that the current task
            is in.
        links: `traceparent` of spans of other traces that it belongs to as well.
        at_s: when it began, seconds since 1970; None: now.
        attributes: of it, shown as `millrace.NAME`.
    """
    if _tracer is None:
        return OFF
    inside = _extracted(parent) if parent else context.Context() if parent is not None else None
    return Span(
        _tracer.start_span(
            name,
            context=inside,
            attributes=_named(attributes),
            links=[trace.Link(one) for link in links if (one := _context_of(link)).is_valid],
            start_time=None if at_s is None else int(at_s * _NS),
        )
    )


@contextmanager
def span(
    name: str, parent: Mapping[str, str] | None = None, **attributes: Attribute
) -> Iterator[Span]:
    """A span around what happens inside, which the current task is in meanwhile.

    An error that leaves it is its status, by the error's type alone: messages may hold text
    of a user's.
    """
    if _tracer is None:
        yield OFF
        return
    opened = begin(name, parent, **cast(dict[str, Any], attributes))
    token = context.attach(trace.set_span_in_context(opened._span))
    try:
        yield opened
    except BaseException as error:
        opened.fail(type(error).__name__)
        raise
    finally:
        context.detach(token)
        opened.end()


def of(traceparent: str) -> dict[str, str]:
    """The headers of a span whose `traceparent` came in a message; none for an empty one."""
    return {"traceparent": traceparent} if traceparent else {}


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {f"millrace.{name}": value for name, value in attributes.items()}


def _extracted(headers: Mapping[str, str]) -> context.Context:
    return _PROPAGATOR.extract(headers)


def _context_of(traceparent: str) -> trace.SpanContext:
    return trace.get_current_span(_extracted(of(traceparent))).get_span_context()
