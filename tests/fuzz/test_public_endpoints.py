"""Whatever is sent to a public interface, it answers at once, blames the sender, and lives on."""

import asyncio
import gc
import json
import re
import sys
from collections.abc import Iterable
from itertools import pairwise

import httpx
import pytest

from tests.fuzz.conftest import Attacked
from tests.fuzz.hostile import bodies, queries, requests

SEED = 7
AT_ONCE = 16
ANSWERED_S = 120.0
ROUNDS, A_ROUND = 5, 30
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@pytest.mark.parametrize(
    "attacked", ["router", "orchestrator", "reward_service", "page"], indirect=True
)
async def test_a_body_that_is_no_good_is_the_senders_fault(attacked: Attacked, budget: int) -> None:
    count = budget // len(attacked.good)
    sent = [
        (method, path, body)
        for method, path, good in attacked.good
        for body in bodies(good, seed=SEED, count=count)
    ]
    await _all_blamed(attacked, sent)


@pytest.mark.parametrize("attacked", ["router", "page"], indirect=True)
async def test_a_query_that_is_no_good_is_the_senders_fault(
    attacked: Attacked, budget: int
) -> None:
    count = budget // len(attacked.questions)
    sent = [
        ("GET", f"{path}?{query}", b"")
        for path, good in attacked.questions
        for query in queries(good, seed=SEED, count=count)
    ]
    await _all_blamed(attacked, sent)


async def _all_blamed(attacked: Attacked, requests: Iterable[tuple[str, str, bytes]]) -> None:
    """None fails in the service, and a refusal says what was wrong."""
    turn = asyncio.Semaphore(4)
    async with httpx.AsyncClient(verify=False, timeout=ANSWERED_S) as http:

        async def send(method: str, path: str, body: bytes) -> None:
            headers = {"content-type": "application/json"}
            async with turn:
                answer = await http.request(
                    method, attacked.url + path, content=body, headers=headers
                )
            sent = path[:500], body[:500], answer.status_code, answer.text[:500]
            assert answer.status_code < 500, sent
            said = [json.loads(line, parse_constant=_no_json) for line in answer.iter_lines()]
            if answer.status_code >= 400:
                assert "error" in said[0] or "detail" in said[0], sent

        await asyncio.gather(*(send(*request) for request in requests))


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.impatient
async def test_bytes_that_are_no_request_are_refused_or_cut_off(
    attacked: Attacked, budget: int
) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def exchange(raw: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", attacked.port)
        try:
            writer.write(raw)
            return await reader.read()
        except ConnectionError:
            return b""  # cut off
        finally:
            writer.close()

    async def send(raw: bytes) -> None:
        async with turn:
            try:
                answered = await asyncio.wait_for(exchange(raw), ANSWERED_S)
            except TimeoutError:
                raise AssertionError(f"neither answered nor cut off: {raw[:500]!r}") from None
        for status in _STATUS.findall(answered):
            assert int(status) < 500, (raw[:500], answered[:500])

    sent = requests(attacked.paths, seed=SEED, count=budget)
    await asyncio.gather(*(send(raw) for raw in sent))


@pytest.mark.parametrize("attacked", ["orchestrator", "page"], indirect=True)
async def test_memory_does_not_grow_with_what_is_asked(attacked: Attacked) -> None:
    """Each round asks for what was never asked for before; an object kept of each would show.

    Blocks come and go by a few hundred whatever is asked: the quietest round counts.
    """
    blocks = []
    async with httpx.AsyncClient(timeout=ANSWERED_S) as http:
        for number in range(ROUNDS):
            for place in range(A_ROUND):
                name = f"x{number}-{place}"
                await http.get(f"{attacked.url}/v1/runs/{name}")
                for path, _ in attacked.questions[:1]:
                    await http.get(f"{attacked.url}{path}?task={name}")
                for method, path, _ in attacked.good:
                    await http.request(method, attacked.url + path, json={name: name})
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    growth = [after - before for before, after in pairwise(blocks)]
    assert min(growth) < 3 * A_ROUND, growth
