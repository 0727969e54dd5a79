"""Having the router stop the answers of a session until newer weights are there."""

from collections.abc import Mapping

import aiohttp

from services.observability.log import Log
from services.protocol.router import SESSION_HEADER

_ANSWER_S = 10.0
_log = Log("orchestrator")


async def interrupt_session(
    http: aiohttp.ClientSession,
    router_url: str,
    session: str,
    *,
    min_version: int,
    headers: Mapping[str, str],
) -> bool:
    """Stop what a session's calls are being answered with; they go on from `min_version`.

    Returns:
        False if the router did not do it: then the answers go on as they are, which costs
        their staleness and nothing else.
    """
    try:
        async with http.post(
            f"{router_url}/v1/sessions/{session}/interrupt",
            json={"min_version": min_version},
            headers={**headers, SESSION_HEADER: session},
            timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
        ) as response:
            problem = "" if response.status == 200 else f"status {response.status}"
    except (TimeoutError, aiohttp.ClientError) as error:
        problem = repr(error)
    if problem:
        _log.warning("not_interrupted", session=session, error=problem)
    return not problem
