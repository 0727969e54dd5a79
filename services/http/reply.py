"""A bounded body of another server's reply."""

import aiohttp


async def read_reply(response: aiohttp.ClientResponse, most: int) -> bytes:
    """All of the body; `content.read(n)` would return what has come so far.

    Raises:
        ValueError: it has more than `most` bytes.
    """
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            raise ValueError(f"its answer has more than {most >> 10} KiB")
    return bytes(body)
