"""Asking the router how full the replicas are."""

import aiohttp
from pydantic import ValidationError

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.rollout import key_header
from services.protocol.router import RouterLoad

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


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
