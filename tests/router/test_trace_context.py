"""Which trace headers go on to a replica."""

import re

import pytest

from services.router.request.trace_context import trace_headers, trace_id

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def test_a_trace_goes_on_with_its_state():
    headers = {"traceparent": PARENT, "tracestate": "a=1", "x-session-id": "s"}
    assert trace_headers(headers, begin=False) == {"traceparent": PARENT, "tracestate": "a=1"}
    assert trace_id(trace_headers(headers, begin=True)) == TRACE_ID


def test_a_later_version_goes_on_as_it_is():
    later = f"cc{PARENT[2:]}-more"
    assert trace_headers({"traceparent": later}, begin=False) == {"traceparent": later}


@pytest.mark.parametrize(
    "parent",
    [
        "nonsense",
        PARENT[:-1],
        PARENT + "-more",
        PARENT.upper(),
        PARENT.replace(TRACE_ID, "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        f"ff{PARENT[2:]}",
        f"cc{PARENT[2:]}more",
    ],
)
def test_an_invalid_trace_counts_as_absent(parent):
    headers = {"traceparent": parent, "tracestate": "a=1"}
    assert trace_headers(headers, begin=False) == {}
    assert trace_headers(headers, begin=True)["traceparent"] != parent


def test_a_trace_is_begun_only_when_asked_for():
    assert trace_headers({}, begin=False) == {}
    one, other = (trace_headers({}, begin=True)["traceparent"] for _ in range(2))
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", one)
    assert one != other
    assert trace_id({}) is None


def test_a_state_that_is_too_long_is_dropped():
    headers = {"traceparent": PARENT, "tracestate": "a=" + "1" * 600}
    assert trace_headers(headers, begin=False) == {"traceparent": PARENT}
