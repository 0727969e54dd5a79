"""Prints the weight bus's member table as a line of JSON whenever it changes."""

import asyncio
import json
import sys
import time
from dataclasses import asdict

import ray

from services.peers import bus_peer
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import NAMESPACE

_WAIT_S = 2.0


async def watch() -> None:
    bus, revision = bus_peer(), -1
    while True:
        try:
            table = await bus.watch(revision, _WAIT_S)
        except NotReady:
            await asyncio.sleep(_WAIT_S)
            continue
        if table.revision != revision:
            revision = table.revision
            members = [asdict(member) for member in table.members]
            print(json.dumps({"at": time.monotonic(), "members": members}), flush=True)


ray.init(address=sys.argv[1], namespace=NAMESPACE, log_to_driver=False)
asyncio.run(watch())
