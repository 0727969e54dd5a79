"""Bodies and bytes made from good ones that mean no good; the same from the same seed."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

HALF_A_PAIR = "\ud800"
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    -(2**200),
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "\0",
    HALF_A_PAIR,
    "../../../../etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "%00%2e%2e%2f",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "!!python/object/apply:os.system ['true']",
    "é\u202e\U0001f600",
    "a" * 5000,
    [],
    {},
    [[]],
    {"": ""},
    {HALF_A_PAIR: HALF_A_PAIR},
    {"__class__": "x", "constructor": {"prototype": 1}},
]
NUMBERS = [2**53, 2**53 - 1, 1e15, "1e-320", "-0", "1_0", "\u0663", " 1 ", "+1", "0x10", "1e2"]
"""As text, to a service that reads numbers."""

DEEP = b"[" * 50_000 + b"]" * 50_000
BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"\\ud800"',
    b"\xff\xfe{}",
    b"\x00" * 64,
    b"NaN",
    b"1e999",
    b"9" * 5000,
    b'{"a": 1, "a": 2}',
    DEEP,
    b'{"a":' * 50_000,
]


def bodies(good: Any, *, seed: int, count: int) -> Iterator[bytes]:
    """`BODIES`, then `count` times a good body with one to three things in it gone wrong."""
    yield from BODIES
    chance = random.Random(seed)
    for _ in range(count):
        body = copy.deepcopy(good)
        for _ in range(chance.randint(1, 3)):
            body = _mutated(body, chance)
        raw = json.dumps(body).encode()
        if chance.random() < 0.1:
            place = chance.randrange(len(raw))
            raw = raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]
        yield raw


def queries(good: dict[str, Any], *, seed: int, count: int) -> Iterator[str]:
    """`count` times a good query with one to three of its values gone wrong."""
    chance = random.Random(seed)
    for _ in range(count):
        wrong = chance.choices(list(good), k=chance.randint(1, 3))
        query = _query(good | {name: chance.choice([*VALUES, *NUMBERS]) for name in wrong})
        yield query + chance.choice(["", "", "&&=", "&limit", "&limit=1&limit=x", "&x=1", "%"])


def _query(values: dict[str, Any]) -> str:
    return urlencode({name: str(value) for name, value in values.items()}, errors="surrogatepass")


def _mutated(value: Any, chance: random.Random) -> Any:
    """The value with one place of it, at any depth, changed, gone or doubled."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.2:
        return copy.deepcopy(chance.choice(VALUES))
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    place, way = chance.choice(places), chance.random()
    if way < 0.6:
        value[place] = _mutated(value[place], chance)
    elif way < 0.8:
        del value[place]
    elif isinstance(value, dict):
        value[chance.choice(["", "\0", HALF_A_PAIR, "__proto__", "x" * 300])] = value[place]
    else:
        value.append(value[place])
    return value


GET, POST = b"GET {path} HTTP/1.1", b"POST {path} HTTP/1.1"
HEADERS = [
    b"content-length: -1",
    b"content-length: 99999999999999999999",
    b"content-length: 5\r\ncontent-length: 6",
    b"content-length: 0x10",
    b"content-length: 10\r\ntransfer-encoding: chunked",
    b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
    b"transfer-encoding: \x0bchunked",
    b"transfer-encoding: gzip, chunked",
    b"content-encoding: gzip",
    b"expect: 100-continue",
    b"expect: the unexpected",
    b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x",
    b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA",
    b"authorization: Bearer \xff\xfe\xfd",
    b"authorization: Bearer a\r\nauthorization: Bearer b",
    b"authorization: Basic " + b"A" * 1000,
    b"x-session-id: ../../etc/passwd",
    b"x-session-id: \xc3\x28",
    b"x-session-id: " + b"s" * 4000,
    b"x-millrace-min-version: 99999999999999999999999",
    b"cookie: " + b"a=b; " * 500,
    b"host: evil\r\nhost: other",
    b"range: bytes=0-0,-1,5-1",
    b"content-type: multipart/form-data",
    b"content-type: application/json; charset=utf-7",
    b"accept: \x00",
    b" folded: value",
    b"no colon at all",
    b": no name",
    b"name with space: x",
]
CHUNKS = [
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\nx\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"5;ext=" + b"e" * 2000 + b"\r\nhello\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"5\r\nhelloXX0\r\n\r\n",
    b"0\r\nauthorization: Bearer trailer\r\n\r\n",
    b"1\r\na\r\n" * 500,
]
STEPS_UP = [
    b"/../../etc/passwd",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"/..%2f..%2fetc%2fpasswd",
    b"/%252e%252e%252f",
    b"/%00",
    b"/%ff%fe",
    b"/\xff\xfe",
    b"//evil/..",
    b"/;/..\\..\\x",
    b"/" + b"a" * 8000,
    b"?limit=" + b"9" * 5000,
    b"?limit=-1&limit=%ff&limit",
    b"/%ed%a0%80",
]
LINES = [
    b"\r\n\r\nGET {path} HTTP/1.1",
    b"GET {path} HTTP/9.9",
    b"GET {path}",
    b"GET  {path}  HTTP/1.1",
    b"get {path} HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT evil:1 HTTP/1.1",
    b"TRACE {path} HTTP/1.1",
    b"GET http://evil{path} HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    b"\x00" * 100,
    b"X" * 5000 + b" {path} HTTP/1.1",
]


def requests(paths: list[bytes], *, seed: int, count: int) -> Iterator[bytes]:
    """Whole connections' worth of bytes: each thing that may go wrong once, then some at a time."""
    chance = random.Random(seed)
    for path in paths:
        yield from (_request(path, line=line) for line in LINES)
        yield from (_request(path, headers=[header]) for header in HEADERS)
        yield from (_request(path, headers=[CHUNKED], body=chunks) for chunks in CHUNKS)
        for steps in STEPS_UP:
            yield from (_request(path + steps, line=line) for line in (GET, POST))
    for _ in range(count):
        path = chance.choice(paths) + chance.choice([b"", *STEPS_UP])
        headers = chance.sample(HEADERS, chance.randint(0, 3))
        line = chance.choice([GET, POST, b"PUT {path} HTTP/1.1", *LINES])
        raw = _request(path, line=line, headers=headers, body=chance.choice([b"", *CHUNKS]))
        for _ in range(chance.choice([0, 0, 1, 5])):
            place = chance.randrange(len(raw))
            raw = raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]
        yield raw


CHUNKED = b"transfer-encoding: chunked"


def _request(
    path: bytes,
    *,
    line: bytes = POST,
    headers: list[bytes] | None = None,
    body: bytes = b"",
) -> bytes:
    head = [line.replace(b"{path}", path), b"host: millrace", b"connection: close"]
    return b"\r\n".join([*head, *(headers or []), b"", b""]) + body
