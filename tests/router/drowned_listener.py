"""A server with the router's bounds at a low limit of open files, in a process of its own.

Prints its port and its bound; when its input ends, how many connections it has refused.
"""

import asyncio
import collections
import json
import resource
import socket
import sys
from unittest import mock

import uvicorn
import uvloop
from starlette.responses import PlainTextResponse

from services.observability.metrics import RouterMetrics
from services.open_files import open_files
from services.router.config import ListenConfig, RouterConfig
from services.router.listener.connection_bound import ACCEPTED_AT_ONCE, bounded, refused
from services.router.listener.listener import BoundedConnection


async def main() -> None:
    listen = bounded(RouterConfig(listen=ListenConfig(port=0)), open_files()).listen
    assert listen is not None
    most = listen.max_connections
    counted: collections.Counter[str] = collections.Counter()
    mock.patch.object(
        RouterMetrics.refused_connections, "inc", lambda tags: counted.update([tags["reason"]])
    ).start()
    refused.watch(asyncio.get_running_loop())
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        PlainTextResponse("here"),
        http=BoundedConnection,
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=ACCEPTED_AT_ONCE,
        limit_concurrency=most + 1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110  (uvicorn announces it to nobody)
        await asyncio.sleep(0.01)
    listener.listen(4096)
    print(json.dumps([listener.getsockname()[1], most]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving
    print(json.dumps(counted))


if __name__ == "__main__":
    loop, limit = sys.argv[1], int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    (uvloop.run if loop == "uvloop" else asyncio.run)(main())
