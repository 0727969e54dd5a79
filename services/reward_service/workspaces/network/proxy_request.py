"""The head of a request to the proxy: what it asks for, and how the server gets it."""

from collections.abc import Iterable

import h11

from services.reward_service.workspaces.network.addresses import BadTarget, Target

REFUSALS = {
    "bad_request": 400,
    "bad_target": 400,
    "host_differs": 400,
    "ambiguous_length": 400,
    "not_allowed": 403,
    "address_refused": 403,
    "bytes_limit": 403,
    "head_too_slow": 408,
    "head_too_large": 431,
    "resolve_failed": 502,
    "connect_failed": 502,
    "bad_answer": 502,
    "resolver_busy": 503,
    "resolve_timeout": 504,
    "connect_timeout": 504,
    "idle": 504,
}
"""HTTP status of each refusal. The name is in the body of its answer and in the metric."""

_HTTP_PORT = 80
_SHOWN = 200  # characters of a request
_OF_ONE_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer "
    b"transfer-encoding upgrade expect".split()
)
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))

Headers = list[tuple[bytes, bytes]]


class Refused(Exception):
    """A request that the proxy does not carry out.

    Attributes:
        name: one of `REFUSALS`.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name = name


def target_of(request: h11.Request) -> Target:
    """What a request wants to reach.

    Raises:
        Refused: it is nothing that a proxy can be asked for, or can be read in two ways.
    """
    if request.http_version not in (b"1.0", b"1.1"):
        raise Refused("bad_request", "the proxy speaks HTTP/1.1")
    _check_lengths(request)
    text = request.target.decode("ascii")
    try:
        if request.method == b"CONNECT":
            return Target.parse(text)
        target = _target_of_url(text)
    except BadTarget as error:
        raise Refused("bad_target", f"{text[:_SHOWN]}: {error}") from None
    for host in (value for name, value in request.headers if name == b"host"):
        if _read(host) != target:
            raise Refused("host_differs", f"the URL names {target}, and Host another")
    return target


def _target_of_url(url: str) -> Target:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() != "http":
        raise BadTarget("a proxy is asked for http://host/..., or with CONNECT host:port")
    if "#" in rest:
        raise BadTarget("a request has no fragment")
    authority, _ = _split(rest)
    if "@" in authority:
        raise BadTarget("a URL with a user is not passed on")
    return Target.parse(authority, default_port=_HTTP_PORT)


def _read(host: bytes) -> Target | None:
    try:
        return Target.parse(host.decode("ascii"), default_port=_HTTP_PORT)
    except (BadTarget, UnicodeDecodeError):
        return None


def _split(rest: str) -> tuple[str, str]:
    """Authority and path of a URL after its scheme."""
    end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith("/") else f"/{path}"


def _check_lengths(request: h11.Request) -> None:
    framed = _FRAMING & {name for name, _ in request.headers}
    if len(framed) == 2:
        raise Refused("ambiguous_length", "both Content-Length and Transfer-Encoding are given")
    if framed and request.method == b"CONNECT":
        raise Refused("bad_request", "CONNECT has no body")


def request_anew(request: h11.Request, target: Target) -> h11.Request:
    """The request as the server gets it: one message, with a body as long as it says."""
    _, path = _split(request.target.decode("ascii").partition("://")[2])
    host = str(target).removesuffix(f":{_HTTP_PORT}") if target.port == _HTTP_PORT else str(target)
    kept = [one for one in end_to_end(request.headers.raw_items()) if one[0].lower() != b"host"]
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        kept.append((b"transfer-encoding", b"chunked"))
    ours = [(b"connection", b"close"), (b"via", b"1.1 millrace")]
    headers = [(b"host", host.encode()), *kept, *ours]
    return h11.Request(method=request.method, target=path.encode(), headers=headers)


def answer_anew(answer: h11.Response) -> h11.Response:
    """The head of an answer as the program gets it; `h11` says how long its body is."""
    headers = end_to_end(answer.headers.raw_items())
    if any(name == b"transfer-encoding" for name, _ in answer.headers):
        headers = [one for one in headers if one[0].lower() != b"content-length"]
    headers.append((b"connection", b"close"))
    return h11.Response(status_code=answer.status_code, headers=headers)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are not for one connection alone."""
    listed = list(headers)
    named = b",".join(value for name, value in listed if name.lower() == b"connection")
    dropped = _OF_ONE_HOP | {name.strip().lower() for name in named.split(b",")} - _FRAMING
    return [(name, value) for name, value in listed if name.lower() not in dropped]
