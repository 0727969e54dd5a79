"""Calls of the router beside those that sample."""

import os
from collections.abc import Mapping

import aiohttp
from pydantic import ValidationError

from services.observability.log import Log
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import InvalidInput
from services.protocol.router import SESSION_HEADER, RouterLoad

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


def key_header(variable: str | None) -> dict[str, str]:
    """The header with the API key in this environment variable; none for None.

    Raises:
        InvalidInput: it is not set.
    """
    if variable is None:
        return {}
    if not (key := os.environ.get(variable)):
        fix = "Set that variable where the orchestrator runs."
        raise InvalidInput("orchestrator.router_key_env", variable, fix)
    return {"authorization": f"Bearer {key}"}


async def router_load(config: OrchestratorConfig) -> RouterLoad | None:
    """What the router says now; None if it does not.

    Raises:
        InvalidInput: the variable that shall hold the API key is not set.
    """
    key, url = key_header(config.router_key_env), f"{config.router_url}/v1/load"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT, headers=key) as http:
            async with http.get(url) as response:
                if response.status != 200:
                    return None
                return RouterLoad.model_validate_json(await response.read())
    except (TimeoutError, aiohttp.ClientError, ValidationError):
        return None


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
