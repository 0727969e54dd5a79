"""The only way of a workspace's programs to the network, against hostile programs and servers."""

import asyncio
import os
import random
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from services.reward_service.workspaces.network.addresses import Target
from services.reward_service.workspaces.network.proxy import (
    ProxyLimits,
    Resolver,
    listening_socket,
    proxy_environment,
)
from services.reward_service.workspaces.network.proxy_request import Refused
from tests.reward_service.workspaces.proxy_world import (
    LONG_S,
    Names,
    ProxyWorld,
    Server,
    listening,
    proxying,
)

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nserver: tiny\r\n\r\nhello"
OTHER = "other.example:80"


def get(url: str, host: str | None = None, *more: str, version: str = "1.1") -> bytes:
    hosts = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([f"GET {url} HTTP/{version}", *hosts, *more, "", ""]).encode("latin-1")


def connect(target: str, *more: str, version: str = "1.1") -> bytes:
    head = [f"CONNECT {target} HTTP/{version}", f"Host: {target}", *more, "", ""]
    return "\r\n".join(head).encode("latin-1")


async def refused(world: ProxyWorld, sent: bytes, status: int, name: str) -> str:
    """Send what must be refused so; the whole answer."""
    answer = (await world.say(sent)).decode()
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    assert f"\r\n\r\n{name}: " in answer, answer
    await world.ended(name)
    return answer


async def test_a_plain_request_reaches_a_server_that_the_operator_named_by_its_number() -> None:
    async with listening(Server(HELLO)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world:
            sent = get(f"HTTP://{place}/a/b?c=d", place, "Accept: */*", "Proxy-Connection: x")
            answer = await world.say(sent)
            assert answer.startswith(b"HTTP/1.1 200 \r\n"), answer
            assert answer.endswith(b"\r\n\r\nhello")
            assert b"server: tiny" in answer
            await world.ended("answered")
        head = server.got[0].decode().lower().split("\r\n")
        assert head[0] == "get /a/b?c=d http/1.1"
        assert head[1:] == [
            f"host: {place}",
            "accept: */*",
            "connection: close",
            "via: 1.1 millrace",
            "",
            "",
        ]


async def test_a_tunnel_carries_bytes_both_ways_until_both_ends_have_said_all() -> None:
    async with listening(Server(b"world")) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world:
            for version in ("1.1", "1.0"):
                early = connect(place, version=version) + b"hel"
                answer = await world.say(early + b"lo\r\n\r\n", end=True)
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert answer.endswith(b"\r\n\r\nworld")
            await world.ended("tunnel", 2)
        assert server.got == [b"hello\r\n\r\n"] * 2


async def test_a_server_is_reached_over_ipv6_by_its_number_in_any_spelling() -> None:
    async with listening(Server(HELLO), host="::1") as server:
        async with proxying([f"[::1]:{server.port}"]) as world:
            for host in ("[::1]", "[0:0::1]", "[0:0:0:0:0:0:0:1]"):
                place = f"{host}:{server.port}"
                assert b"hello" in await world.say(get(f"http://{place}/", place))
        assert f"host: [::1]:{server.port}\r\n".encode() in server.got[-1]


async def test_a_name_is_resolved_once_and_the_checked_address_is_the_one_connected_to() -> None:
    async with listening(Server(HELLO)) as server:
        asked = [f"a.example:{server.port}"]
        local = [f"127.0.0.1:{server.port}"]
        names = Names(a_example=["127.0.0.1", "127.0.0.2"])
        async with proxying(asked, literals=local, names=names) as world:
            assert b"hello" in await world.say(get(f"http://{asked[0]}/", asked[0]))
            assert names.asked == ["a.example"]
            answer = await refused(
                world, get(f"http://{asked[0]}/", asked[0]), 403, "address_refused"
            )
            assert "127.0.0.2" in answer
        assert len(server.got) == 1


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.1.2.3", "224.0.0.1", "0.0.0.0"],
)
async def test_a_name_that_leads_inside_is_refused_by_both_methods(address: str) -> None:
    names = Names(a_example=[address])
    async with proxying(["a.example:80", "a.example:443"], names=names) as world:
        await refused(world, get("http://a.example/", "a.example"), 403, "address_refused")
        await refused(world, connect("a.example:443"), 403, "address_refused")


async def test_of_several_addresses_only_those_are_tried_that_may_be_had() -> None:
    async with listening(Server(HELLO)) as server:
        asked, local = f"a.example:{server.port}", f"127.0.0.1:{server.port}"
        names = Names(a_example=["10.0.0.1 169.254.169.254 ::1 127.0.0.1"])
        async with proxying([asked], literals=[local], names=names) as world:
            assert b"hello" in await world.say(get(f"http://{asked}/", asked))


@pytest.mark.parametrize(
    "sent",
    [
        get("http://other.example/", "other.example"),
        get("http://a.example:81/", "a.example:81"),
        get("http://b.a.example/", "b.a.example"),
        get("http://a.example.evil/", "a.example.evil"),
        get("http://93.184.216.34/", "93.184.216.34"),
        get("http://[2606:4700::1]/", "[2606:4700::1]"),
        get("http://xn--mnchen-3ya.de/", "xn--mnchen-3ya.de"),
        connect("a.example:443"),
        connect("a.example:22"),
        connect("other.example:80"),
        connect("[::1]:80"),
    ],
)
async def test_what_the_workspace_was_not_given_is_not_even_resolved(sent: bytes) -> None:
    names = Names(a_example=["127.0.0.1"], other_example=["127.0.0.1"])
    async with proxying(["a.example:80"], names=names) as world:
        await refused(world, sent, 403, "not_allowed")
        assert not names.asked


@pytest.mark.parametrize("spelling", ["A.EXAMPLE", "a.example.", "A.Example.:80", "a.example:80"])
async def test_every_spelling_of_a_granted_name_is_that_name(spelling: str) -> None:
    async with proxying(["a.example:80"], names=Names(a_example=["10.0.0.1"])) as world:
        await refused(world, get(f"http://{spelling}/", spelling), 403, "address_refused")
        await refused(world, get(f"http://{spelling}/", "a.example"), 403, "address_refused")


async def test_a_name_of_other_letters_is_granted_by_either_spelling() -> None:
    names = Names(**{"xn--mnchen-3ya_de": ["10.0.0.1"]})
    async with proxying(["münchen.de:80"], names=names) as world:
        spelled = "XN--MNCHEN-3YA.de"
        await refused(world, get(f"http://{spelled}/", spelled), 403, "address_refused")


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (get("/", "a.example"), "bad_target"),
        (get("*", "a.example"), "bad_target"),
        (get("https://a.example/", "a.example"), "bad_target"),
        (get("ftp://a.example/", "a.example"), "bad_target"),
        (get("file:///etc/passwd", "a.example"), "bad_target"),
        (get("http:a.example/", "a.example"), "bad_target"),
        (get("http:///a.example/", "a.example"), "bad_target"),
        (get("http://user@a.example/", "a.example"), "bad_target"),
        (get("http://a.example@other.example/", "a.example"), "bad_target"),
        (get("http://a.example:80@other.example/", "a.example"), "bad_target"),
        (get("http://a.example\\@other.example/", "a.example"), "bad_target"),
        (get("http://a.example#@other.example/", "a.example"), "bad_target"),
        (get("http://a.example:/", "a.example"), "bad_target"),
        (get("http://a.example:0x50/", "a.example"), "bad_target"),
        (get("http://127.1/", "a.example"), "bad_target"),
        (get("http://0x7f000001/", "a.example"), "bad_target"),
        (get("http://2130706433/", "a.example"), "bad_target"),
        (get("http://a%2eexample/", "a.example"), "bad_target"),
        (get("http://a.example/", "other.example"), "host_differs"),
        (get("http://a.example/", "a.example:81"), "host_differs"),
        (get("http://a.example/", "user@a.example"), "host_differs"),
        (get("http://a.example/", ""), "host_differs"),
        (get("http://a.example/", "a.example, other.example"), "host_differs"),
        (get("http://a.example/", "a.example", "Host: other.example"), "bad_request"),
        (get("http://a.example/"), "bad_request"),
        (connect("a.example"), "bad_target"),
        (connect("a.example:80/"), "bad_target"),
        (connect("http://a.example:80"), "bad_target"),
        (connect("user@a.example:80"), "bad_target"),
        (connect("a.example:80", "Content-Length: 3") + b"abc", "bad_request"),
        (connect("a.example:80", "Transfer-Encoding: chunked") + b"0\r\n\r\n", "bad_request"),
        (
            get(
                "http://a.example/", "a.example", "Content-Length: 5", "Transfer-Encoding: chunked"
            ),
            "ambiguous_length",
        ),
        (
            get("http://a.example/", "a.example", "Content-Length: 5", "Content-Length: 6"),
            "bad_request",
        ),
        (get("http://a.example/", "a.example", "Content-Length: +5"), "bad_request"),
        (get("http://a.example/", "a.example", "Content-Length: 1e3"), "bad_request"),
        (get("http://a.example/", "a.example", "Transfer-Encoding: gzip, chunked"), "bad_request"),
        (get("http://a.example/", "a.example", "Transfer-Encoding : chunked"), "bad_request"),
        (get("http://a.example/", "a.example", "X: a\x00b"), "bad_request"),
        (b"GET http://a.example/ HTTP/1.1\nHost a\n\n", "bad_request"),
        (b"GET http://a.example/ HTTP/2.0\r\nHost: a.example\r\n\r\n", "bad_request"),
        (b"GET  http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "bad_request"),
        (b"GET http://a.example/ x HTTP/1.1\r\nHost: a.example\r\n\r\n", "bad_request"),
        (b"GET http://a\xff.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "bad_request"),
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_refused(sent: bytes, name: str) -> None:
    names = Names(a_example=["10.0.0.1"], other_example=["10.0.0.1"])
    async with proxying(["a.example:80"], names=names) as world:
        await refused(world, sent, 400, name)
        assert not names.asked


async def test_a_second_request_on_a_connection_is_never_carried_out() -> None:
    """So that nothing in a body, and no pipelined request, ever reaches another server."""
    async with listening(Server(HELLO)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world:
            answer = await world.say(get(f"http://{place}/1", place) * 3)
            assert answer.count(b"hello") == 1
            assert b"connection: close" in answer.lower()
        assert len(server.got) == 1
        assert server.got[0].count(b"GET ") == 1


async def test_a_body_is_framed_anew_and_what_follows_it_is_left_out() -> None:
    async with listening(Server(HELLO, reads_all=True)) as server:
        place = f"127.0.0.1:{server.port}"
        body = b"3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n"
        head = f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: Chunked\r\n"
        async with proxying([place]) as world:
            sent = head.encode() + b"\r\n" + body + b"GET http://x/ HTTP/1.1\r\n\r\n"
            assert b"hello" in await world.say(sent)
        head, _, carried = server.got[0].partition(b"\r\n\r\n")
        assert carried == b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
        assert b"transfer-encoding: chunked" in head.lower()


async def test_whatever_a_program_sends_a_server_gets_one_request_that_it_may_get() -> None:
    """Requests cut, doubled, and mixed: each ends by a name, and none is the proxy's failure."""
    chance = random.Random(7)
    async with listening(Server(HELLO)) as server:
        place = f"127.0.0.1:{server.port}"
        whole = [
            get(f"http://{place}/a", place, "Content-Length: 5") + b"abcde",
            get(f"http://{place}/b", place, "Transfer-Encoding: chunked")
            + b"3\r\nabc\r\n0\r\n\r\n",
            connect(place) + b"\r\n\r\n",
            get("http://other.example/", "other.example"),
        ]
        limits = ProxyLimits(head_s=0.5, idle_s=0.5)
        async with proxying([place], limits=limits) as world:
            sent = [_mixed(chance, whole) for _ in range(120)]
            for start in range(0, len(sent), 12):
                together = (world.say(one, end=True) for one in sent[start : start + 12])
                await asyncio.gather(*together)
            assert not world.proxy.outcomes["proxy_failed"]
        for got in server.got:
            head = got.partition(b"\r\n\r\n")[0]
            if b"via: 1.1 millrace" in head:
                assert head.count(b"HTTP/1.1") == 1
                assert head.lower().count(b"\r\nhost: ") == 1
                assert f"host: {place}".encode() in head.lower()


def _mixed(chance: random.Random, whole: list[bytes]) -> bytes:
    one, other = chance.choice(whole), chance.choice(whole)
    cut, rest = chance.randrange(len(one)), chance.randrange(len(other))
    noise = bytes(chance.choice(b"\r\n \t:/@#\x00\xffaZ0") for _ in range(chance.randrange(4)))
    return chance.choice([one[:cut] + other[rest:], one[:cut] + noise + one[cut:], one + other])


async def test_headers_of_one_hop_end_at_the_proxy() -> None:
    async with listening(Server(HELLO)) as server:
        place = f"127.0.0.1:{server.port}"
        secret = ("Connection: x-secret, content-length", "X-Secret: 1", "Upgrade: websocket")
        more = (*secret, "TE: trailers", "Proxy-Authorization: Basic x", "Keep-Alive: 5")
        async with proxying([place]) as world:
            sent = get(f"http://{place}/", place, *more, "Content-Length: 2") + b"ok"
            assert b"hello" in await world.say(sent)
        got = server.got[0].lower()
        for left_out in (b"x-secret", b"upgrade", b"te:", b"proxy-", b"keep-alive"):
            assert left_out not in got
        assert b"content-length: 2" in got


async def test_an_old_program_gets_an_answer_that_it_can_read() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    )
    async with listening(Server(chunked)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world:
            old = await world.say(get(f"http://{place}/", version="1.0"))
            assert old.endswith(b"\r\n\r\nhello")
            assert b"chunked" not in old.lower()
            new = await world.say(get(f"http://{place}/", place))
            assert new.endswith(b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")


async def test_a_program_that_waits_for_leave_to_send_gets_it() -> None:
    async with listening(Server(HELLO)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world, asyncio.timeout(LONG_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            head = get(f"http://{place}/", place, "Content-Length: 2", "Expect: 100-continue")
            writer.write(head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
            writer.write(b"ok")
            assert b"hello" in await reader.read()
            writer.close()
        assert b"expect" not in server.got[0].lower()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n",
    ],
    ids=["nothing", "ssh", "long head", "another protocol", "two lengths", "half a head"],
)
async def test_a_server_that_answers_with_no_http_is_an_error_with_a_name(answer: bytes) -> None:
    async with listening(Server(answer)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world:
            await refused(world, get(f"http://{place}/", place), 502, "bad_answer")


async def test_an_answer_that_breaks_off_is_broken_off() -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello"
    async with listening(Server(half)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world:
            answer = await world.say(get(f"http://{place}/", place))
            assert not answer.startswith(b"HTTP/1.1 502")
            await world.ended("bad_answer")


async def test_a_server_that_is_not_there_or_has_no_name_is_an_error_with_a_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        place = f"127.0.0.1:{closed.getsockname()[1]}"
    async with proxying([place, "a.example:80"]) as world:
        await refused(world, get(f"http://{place}/", place), 502, "connect_failed")
        await refused(world, get("http://a.example/", "a.example"), 502, "resolve_failed")


async def test_a_resolver_that_hangs_is_waited_for_no_longer_than_its_time() -> None:
    stuck = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Names):
        def __call__(self, host: str, port: int) -> list:
            asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result(LONG_S)
            return []

    limits = ProxyLimits(resolve_s=0.05)
    try:
        async with proxying(["a.example:80"], limits=limits, names=Slow()) as world:
            await refused(world, get("http://a.example/", "a.example"), 504, "resolve_timeout")
    finally:
        stuck.set()


async def test_lookups_that_pile_up_are_refused() -> None:
    stuck = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(host: str, port: int) -> list:
        asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result(LONG_S)
        return []

    resolver = Resolver(slow, threads=1, waiting=2)
    target = Target.parse("a.example:80")
    try:
        for expected in ("resolve_timeout", "resolve_timeout", "resolver_busy"):
            with pytest.raises(Refused) as refusal:
                await resolver.addresses(target, timeout_s=0.01)
            assert refusal.value.name == expected
    finally:
        stuck.set()
        resolver.close()


async def test_a_head_is_bounded_in_bytes_and_in_time() -> None:
    limits = ProxyLimits(head_bytes=4096, head_s=0.2)
    async with proxying(["a.example:80"], limits=limits) as world:
        large = get("http://a.example/", "a.example", "X: " + "a" * 100_000)
        await refused(world, large, 431, "head_too_large")
        await refused(world, b"GET http://a.example/ HT", 408, "head_too_slow")


async def test_a_connection_on_which_nothing_moves_is_ended() -> None:
    silent = asyncio.Event()

    class Silent(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await silent.wait()
            writer.close()

    try:
        async with listening(Silent(b"")) as server:
            place = f"127.0.0.1:{server.port}"
            async with proxying([place], limits=ProxyLimits(idle_s=0.1)) as world:
                await refused(world, get(f"http://{place}/", place), 504, "idle")
                answer = await world.say(connect(place))
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n\r\n")
                await world.ended("idle", 2)
            silent.set()
    finally:
        silent.set()


async def test_a_workspace_moves_no_more_bytes_than_its_share() -> None:
    large = b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 300_000
    async with listening(Server(large)) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place], limits=ProxyLimits(total_bytes=200_000)) as world:
            answer = await world.say(get(f"http://{place}/", place))
            assert len(answer) < 300_000
            await world.ended("bytes_limit")
            for sent in (get(f"http://{place}/", place), connect(place)):
                await refused(world, sent, 403, "bytes_limit")
        assert len(server.got) == 1


async def test_connections_beyond_the_bound_wait_and_hold_nothing_of_the_service() -> None:
    async with proxying([], limits=ProxyLimits(connections=2)) as world:
        before = len(os.listdir("/proc/self/fd"))
        held = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(2)]
        waiting = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(5)]
        for _, writer in held:
            writer.write(b"GET")  # has it been accepted, its head is awaited
        taken = len(os.listdir("/proc/self/fd")) - before
        assert taken <= 7 + 2, "seven of ours, and two that the proxy accepted"
        for _, writer in waiting:
            writer.write(get("http://other.example/", "other.example"))
        for _, writer in held:
            writer.close()
        await world.ended("bad_request", 2)
        await world.ended("not_allowed", 5)
        for _, writer in waiting:
            writer.close()


async def test_closing_ends_tunnels_and_the_socket() -> None:
    forever = asyncio.Event()

    class Quiet(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.got.append(await reader.read())
            forever.set()
            writer.close()

    async with listening(Quiet(b"")) as server:
        place = f"127.0.0.1:{server.port}"
        async with proxying([place]) as world, asyncio.timeout(LONG_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(connect(place))
            await reader.readuntil(b"\r\n\r\n")
            await world.proxy.close()
            await forever.wait()
            writer.close()
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", world.port)


async def test_tls_goes_through_a_tunnel_from_end_to_end(tmp_path: Path) -> None:
    authority = trustme.CA()
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("a.example").configure_cert(secure)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    code = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1]).read())"
    server = Server(HELLO)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=secure)
    port = listener.sockets[0].getsockname()[1]
    asked, local = f"a.example:{port}", f"127.0.0.1:{port}"
    names = Names(a_example=["127.0.0.1"])
    async with listener, proxying([asked], literals=[local], names=names) as world:
        trusted = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        env = {"PATH": os.environ["PATH"], **proxy_environment(world.port), **trusted}
        argv = [sys.executable, "-c", code, f"https://{asked}/x"]
        ran = await asyncio.to_thread(
            subprocess.run, argv, env=env, capture_output=True, text=True, timeout=LONG_S
        )
        assert ran.stdout == "b'hello'\n", ran.stderr
        await world.ended("tunnel")
    assert server.got[0].startswith(b"GET /x HTTP/1.1\r\n")


async def test_python_finds_the_proxy_by_its_environment() -> None:
    code = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1]).read())"
    async with listening(Server(HELLO)) as server:
        names = Names(a_example=["127.0.0.1"])
        asked, local = f"a.example:{server.port}", f"127.0.0.1:{server.port}"
        async with proxying([asked], literals=[local], names=names) as world:
            env = {"PATH": os.environ["PATH"], **proxy_environment(world.port)}
            argv = [sys.executable, "-c", code, f"http://{asked}/x"]
            ran = await asyncio.to_thread(
                subprocess.run, argv, env=env, capture_output=True, text=True, timeout=LONG_S
            )
            assert ran.stdout == "b'hello'\n", ran.stderr
            other = ["http://other.example/", "https://other.example/"]
            for url in other:
                argv[-1] = url
                ran = await asyncio.to_thread(
                    subprocess.run, argv, env=env, capture_output=True, text=True, timeout=LONG_S
                )
                assert "403" in ran.stderr
            assert world.proxy.outcomes["not_allowed"] == 2


async def test_only_a_listening_socket_is_taken_from_a_workspace(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as good:
        with listening_socket(os.dup(good.fileno())) as taken:
            assert taken.getsockname() == good.getsockname()
    bad = [socket.socket(socket.AF_UNIX), socket.socket(), socket.socket(type=socket.SOCK_DGRAM)]
    for one in bad:
        with one, pytest.raises(ValueError, match="no listening"):
            listening_socket(os.dup(one.fileno()))
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises((ValueError, OSError)):
        listening_socket(descriptor)
