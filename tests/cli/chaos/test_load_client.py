import asyncio

from millrace_tools.chaos.load_client import LoadClient
from millrace_tools.chaos.observation import Call


async def test_a_call_that_waits_until_the_end_of_a_campaign_is_told() -> None:
    calls: list[Call] = []
    now = 0.0
    client = LoadClient("http://127.0.0.1:1", None, lambda: now, calls)
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    for waited, told in ((5.0, 0), (100.0, 1)):
        now = 0.0
        asked.clear()
        asking = asyncio.create_task(client._call("whole", hang))
        await asked.wait()
        now = waited
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        assert len(calls) == told
    assert calls[0].problem == "no answer in 100 s, until the end"
    await client.close()
