"""vLLM's own server with policy versions on every chunk, as rollout servers run it.

python benchmarks/router_overhead_vllm.py --model ... --port ...   # vLLM's arguments
"""

import asyncio
import socket

from vllm.entrypoints.launchers.api_server.entry import (
    build_and_serve,
    build_async_engine_client,
)
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.rollout_server.parent_death import die_with_parent
from services.rollout_server.version_spans import put_spans_on_every_output


async def serve() -> None:
    """Serve until killed."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(args)
    address, sock = setup_server(args, reuse_port=False)
    # As rollout servers have it: vLLM's own waits 40 ms before it sends an answer's body.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with build_async_engine_client(args) as engine:
        await (await build_and_serve(engine, address, sock, args))


if __name__ == "__main__":
    die_with_parent()
    put_spans_on_every_output()
    asyncio.run(serve())
