"""Comments in a stream by choice: signs of life before its first choice is whole."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from services.protocol.router import PROGRESS_S
from services.router.answering.open_request import OpenRequest
from services.router.http.answers import HttpAnswer
from services.side_by_side import running


def commented(request: OpenRequest, answer: HttpAnswer) -> AbstractAsyncContextManager[None]:
    """While the block runs, tell the client of a stream by choice that its request makes progress.

    Nothing else is heard of it until a choice is whole, which may take hours.
    """
    if request.ask.stream_by != "choice":
        return nullcontext()
    return running(_comment(request, answer), name="progress_comments")


async def _comment(request: OpenRequest, answer: HttpAnswer) -> None:
    told = 0
    while True:
        await asyncio.sleep(PROGRESS_S)
        made = sum(len(journal.token_ids) for journal in request.journals)
        if request.waits or made > told:
            told = made
            await answer.comment(f"{made} tokens")
