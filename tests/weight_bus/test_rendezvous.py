"""What the store of a bus keeps of links."""

import asyncio

from services.transport.rendezvous import connect
from services.weight_bus.rendezvous import Rendezvous


async def test_the_store_keeps_nothing_of_links_that_have_served() -> None:
    store = Rendezvous("127.0.0.1", timeout_s=300.0)
    host, port = await store.address()
    client = await asyncio.to_thread(connect, host, port)
    for prefix in ("n1/b.1/t0.0", "n1/b.1/t1.0", "n1/b.10/t0.0"):
        client.set(f"{prefix}/0", "address")
    store.forget("n1/b.1/")
    await asyncio.gather(*store._deletions)
    assert client.list_keys() == ["n1/b.10/t0.0/0"]
