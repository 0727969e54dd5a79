"""The URL of the services: its API key, and the errors where they do not answer."""

import os
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

import httpx

from services.http.api_key import key_header
from services.protocol.errors import InvalidInput, NotReady

API_KEY = "MILLRACE_API_KEY"
"""Environment variable with the key: other users can read a command's arguments."""

STARTING = "the services are still starting: run `millrace wait`"
_TIMEOUT_S = 5.0
_ROUTES = "/-/routes"  # of Serve's proxy, which answers 503 until it knows a route


def http_client(url: str, timeout: httpx.Timeout | float) -> httpx.Client:
    """A client of the services at a URL that shows the API key, if there is one.

    Raises:
        InvalidInput: it is not a URL.
    """
    split_url(url)
    key = key_header(os.environ.get(API_KEY))
    return httpx.Client(base_url=url, timeout=timeout, trust_env=False, headers=key)


def split_url(url: str, field: str = "--url") -> SplitResult:
    """The parts of a URL of the services, or of another server that the option `field` names.

    Raises:
        InvalidInput: it is not a URL.
    """
    try:
        httpx.URL(url)
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise ValueError("write it like http://127.0.0.1:8000")
        _ = parts.port  # raises where it is no number
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput(field, url, f"It is not a URL: {error}.") from None
    return parts


def nothing_answers(url: str) -> InvalidInput:
    """The error where nothing listens."""
    fix = (
        "Nothing answers there. Start the services first: "
        "`serve run --non-blocking deploy/laptop.yaml`, then `millrace wait`."
    )
    return InvalidInput("--url", url, fix)


def asks_for_key(url: str) -> NotReady:
    """The error where a service wants a key, or knows another one."""
    return NotReady(f"{url} asks for an API key: set {API_KEY} to one that it knows")


def unknown_path(url: str, path: str, service: str) -> InvalidInput | NotReady:
    """The error where a server answers that does not know the path of `service`."""
    with suppress(httpx.HTTPError):
        answer = httpx.get(url.rstrip("/") + _ROUTES, timeout=_TIMEOUT_S, trust_env=False)
        if answer.status_code in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE):
            return NotReady(f"{url} has no {path} yet: {STARTING}")
    fix = f"Something answers there, but it has no {path}: is the {service} deployed?"
    return InvalidInput("--url", url, fix)
