"""Calls of the router besides rollouts: its load, and interruptions."""

from collections.abc import Mapping

import aiohttp
from pydantic import ValidationError

from services.http.api_key import key_header
from services.observability.log import Log
from services.orchestrator.config import OrchestratorConfig
from services.protocol.router import SESSION_HEADER, RouterLoad

_LOAD_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_INTERRUPT_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_log = Log("orchestrator")


async def router_load(config: OrchestratorConfig) -> RouterLoad | None:
    """Ask the router for its load; None if it does not answer.

    Raises:
        InvalidInput: the variable that shall hold the API key is not set.
    """
    key, url = key_header(config.router_key), f"{config.router_url}/v1/load"
    try:
        async with aiohttp.ClientSession(timeout=_LOAD_TIMEOUT, headers=key) as http:
            async with http.get(url) as response:
                if response.status != 200:
                    return None
                return RouterLoad.model_validate_json(await response.read())
    except (TimeoutError, aiohttp.ClientError, ValidationError):
        return None


async def interrupt_session(
    http: aiohttp.ClientSession,
    router_url: str,
    session: str,
    *,
    min_version: int,
    headers: Mapping[str, str],
) -> bool:
    """Interrupt the answers to a session's calls; they go on from `min_version`.

    Returns:
        False if the router did not do it: then the answers go on as they are, which costs
        their staleness and nothing else.
    """
    try:
        async with http.post(
            f"{router_url}/v1/sessions/{session}/interrupt",
            json={"min_version": min_version},
            headers={**headers, SESSION_HEADER: session},
            timeout=_INTERRUPT_TIMEOUT,
        ) as response:
            problem = "" if response.status == 200 else f"status {response.status}"
    except (TimeoutError, aiohttp.ClientError) as error:
        problem = repr(error)
    if problem:
        _log.warning("not_interrupted", session=session, error=problem)
    return not problem
