"""Replies of other servers, which come in pieces."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader

from services.http.reply import read_reply


def coming() -> tuple[Any, StreamReader]:
    """A reply of which nothing has come, and where it comes in."""
    loop = asyncio.get_running_loop()
    content = StreamReader(Mock(_reading_paused=False), limit=1 << 16, loop=loop)
    return SimpleNamespace(content=content), content


async def test_a_reply_in_pieces_is_read_to_its_end() -> None:
    reply, content = coming()
    content.feed_data(b'{"reward"')
    reading = asyncio.create_task(read_reply(reply, 100))
    await asyncio.sleep(0)  # it has the first piece
    content.feed_data(b": 1}")
    content.feed_eof()
    assert await reading == b'{"reward": 1}'


async def test_a_reply_without_end_is_refused() -> None:
    reply, content = coming()
    content.feed_data(b"x" * 2049)
    with pytest.raises(ValueError, match="more than 2 KiB"):
        await read_reply(reply, 2048)
