"""Streams of events as the servers of the world write them."""

import pytest

from services.http import event_stream
from services.http.event_stream import EventStream, EventTooLong

SPELLINGS = {
    "vLLM": b'data: {"a": 1}\n\ndata: [DONE]\n\n',
    "without spaces": b'data:{"a": 1}\n\ndata:[DONE]\n\n',
    "with carriage returns": b'data: {"a": 1}\r\n\r\ndata: [DONE]\r\n\r\n',
    "with comments": b': ping\n\ndata: {"a": 1}\n\n: ping\n: pong\ndata: [DONE]\n\n',
    "with names": b'event: message\nid: 7\ndata: {"a": 1}\nretry: 5\n\ndata: [DONE]\n\n\n\n',
    "over several lines": b'data: {"a":\ndata: 1}\n\ndata: [DONE]\n\n',
}


@pytest.mark.parametrize("written", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_the_same_events_are_read_however_they_are_spelled_and_cut(written, step):
    stream, events = EventStream(), []
    for at in range(0, len(written), step):
        events += stream.feed(written[at : at + step])
    assert events == [b'{"a": 1}', b"[DONE]"]


@pytest.mark.parametrize("part", [b"x" * 16, b"data: x\n"])
def test_an_event_that_has_no_end_is_not_kept(monkeypatch, part):
    monkeypatch.setattr(event_stream, "_LONGEST", 100)
    stream = EventStream()
    assert stream.feed(b"data: fits\n\n" * 50)[-1] == b"fits"
    with pytest.raises(EventTooLong, match="more than 100 bytes"):
        _feed(stream, part)


def _feed(stream, part):
    for _ in range(20):
        stream.feed(part)
