"""A whole replica in a process of its own, whose engine it kills; says as JSON what it saw."""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from services.observability.garbage import heavy_imports
from services.protocol.placement import Node
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.weight_bus import Orders, WeightBus
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import engine_sockets, environment


class QuietBus:
    """Takes the replica in and has nothing for it to do."""

    def __init__(self) -> None:
        self.registered = asyncio.Event()
        self.commit_timeout_s = 0.0
        self.left_at: float | None = None
        self.health: Callable[[], Awaitable[None]]
        self.illness: RuntimeError | None = None

    async def register_replica(self, hello: ReplicaHello) -> None:
        self.commit_timeout_s = hello.commit_timeout_s
        self.registered.set()

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        await asyncio.sleep(wait_s)
        return Orders(known=True, last=0, orders=())

    async def leave(self, member_id: str) -> None:
        self.left_at = time.monotonic()
        try:
            await self.health()
        except RuntimeError as error:
            self.illness = error


def libc_address(pid: int | None) -> str:
    """Where the C library is mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next(line.split("-")[0] for line in maps if "/libc.so" in line or "/libc-" in line)


def parent(pid: int | None) -> int:
    """The process that started it."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("PPid:")))


def socket_files() -> list[str]:
    """Sockets that have a file in the temporary folder."""
    return [str(path) for path in Path(tempfile.gettempdir()).rglob("*") if path.is_socket()]


async def main(model: str) -> dict[str, Any]:
    config = RolloutServerConfig(model=model, max_model_len=256, kv_cache_gb=0.05, max_num_seqs=4)
    os.environ.update(environment(config))
    with heavy_imports():
        from services.rollout_server.replica import RolloutReplica

    bus, ended = QuietBus(), asyncio.Event()
    asked = cast(WeightBus, bus)
    replica = RolloutReplica(
        config, replica_id="r", node=Node(ip="127.0.0.1"), bus=asked, on_end=ended.set
    )
    bus.health = replica.check_health
    with engine_sockets():
        await replica.start()
    await asyncio.wait_for(bus.registered.wait(), 300)
    (engine,) = multiprocessing.active_children()
    assert replica._engine is not None
    seen = {
        "sockets_left": socket_files(),
        "engine_answers": not await asyncio.wait_for(replica._engine.is_sleeping(), 300),
        "start_method": type(engine)._start_method,  # type: ignore[attr-defined]
        "parent_is_replica": parent(engine.pid) == os.getpid(),
        # A spawned process would have loaded its libraries elsewhere. (Its command line says
        # nothing: vLLM overwrites it.)
        "memory_inherited": libc_address(engine.pid) == libc_address(os.getpid()),
    }
    killed_at = time.monotonic()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await asyncio.wait_for(ended.wait(), 300)
    assert bus.left_at is not None
    return seen | {
        "commit_timeout_s": bus.commit_timeout_s,
        "left_after_s": bus.left_at - killed_at,
        "ended_after_s": time.monotonic() - killed_at,
        "illness": [type(bus.illness).__name__, str(bus.illness)],
        "children_left": len(multiprocessing.active_children()),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
