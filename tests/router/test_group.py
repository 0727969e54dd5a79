"""Several choices in one request."""

import asyncio

WORD = "hello"
TOKENS = 1 + len(WORD) + 1


def _ask(cluster, **extra):
    body = {"model": "test-model", "messages": [{"role": "user", "content": WORD}], **extra}
    return asyncio.create_task(
        cluster.http.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=300)
    )


async def test_a_choice_that_has_ended_leaves_its_place_to_others(cluster, fault):
    """While the last one of its group goes on for long."""
    await cluster.start(replicas=1, max_sequences=2, min_sequences=1)
    cluster.faults.append(fault("stall", 2 * TOKENS - 1))
    group = _ask(cluster, n=2)
    await cluster.stalled()
    async with asyncio.timeout(300):
        assert (await _ask(cluster)).status_code == 200
    assert not group.done()
    assert cluster.reservations.chooser.in_flight("replica-0") == 1
    group.cancel()
    await asyncio.gather(group, return_exceptions=True)
