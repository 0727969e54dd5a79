"""Why nobody, or somebody else, answers at the address of the services."""

import httpx

from services.protocol.errors import InvalidInput, NotReady

STARTING = "the services are still starting: run `millrace wait`"
_TIMEOUT_S = 5.0
_ROUTES = "/-/routes"  # Serve's proxy answers there, with 503 until it knows a route


def nobody(url: str) -> InvalidInput:
    """The error where nothing listens."""
    fix = (
        "Nothing answers there. Start the services first: "
        "`serve run --non-blocking deploy/laptop.yaml`, then `millrace wait`."
    )
    return InvalidInput("--url", url, fix)


def unknown_path(url: str, path: str, service: str) -> InvalidInput | NotReady:
    """The error where something answers, but does not know the path of `service`."""
    if _is_serve(url):
        return NotReady(f"{url} has no {path} yet: {STARTING}")
    fix = f"Something answers there, but it has no {path}: is the {service} deployed?"
    return InvalidInput("--url", url, fix)


def _is_serve(url: str) -> bool:
    try:
        answer = httpx.get(url.rstrip("/") + _ROUTES, timeout=_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE)
