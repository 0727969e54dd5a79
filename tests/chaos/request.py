"""One streamed answer of a replica, taken token by token as the router takes it."""

import json
from collections.abc import Callable

import aiohttp

from services.protocol.weights.weight_bus import Member
from services.router.answering.journal import ChoiceJournal
from services.router.errors import UpstreamBroken

PROMPT = [40, 50, 60, 70, 80]
TOKENS = 250


def open_session() -> aiohttp.ClientSession:
    """A client without deadlines of its own, with a connection for each request.

    A replica closes one that was idle for 5 s, and resets a request that comes at that moment.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def stream(
    session: aiohttp.ClientSession,
    member: Member,
    request_id: str,
    journal: ChoiceJournal,
    on_chunk: Callable[[], None],
) -> None:
    """Ask for `TOKENS` tokens and write them into the journal as they come.

    Raises:
        AssertionError: the replica refused, or ended the answer early.
        aiohttp.ClientError: the connection broke.
        UpstreamBroken: an error in place of tokens, a token without label or logprob.
    """
    sampling = {"max_tokens": TOKENS, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
    body = {
        "request_id": request_id,
        "model": member.model,
        "token_ids": PROMPT,
        "sampling_params": sampling,
        "stream": True,
    }
    async with session.post(f"{member.address}/inference/v1/generate", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line.removeprefix(b"data: "))
                if "choices" not in chunk:
                    raise UpstreamBroken("error", str(chunk))
                for choice in chunk["choices"]:
                    journal.take(choice)
                on_chunk()
    assert journal.finish_reason == "length", f"ended early: {journal.finish_reason}"
