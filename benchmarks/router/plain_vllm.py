"""vLLM's own application as rollout servers serve it, with what routers ask of it besides.

python -m benchmarks.router.plain_vllm --model ... --port ...   # vLLM's arguments
"""

import asyncio

import uvloop
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.rollout_server.engine.parent_death import die_with_parent
from services.rollout_server.engine.vllm_patches.version_spans import put_spans_on_every_output
from services.rollout_server.http.http_server import HttpServer

VERSION = "3"


async def serve() -> None:
    """Serve until killed."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(args)
    async with build_async_engine_client(args) as engine:
        await engine.update_weight_version(VERSION)
        server = HttpServer(args.host, args.port)
        await server.start(engine, args)
        await asyncio.Event().wait()


if __name__ == "__main__":
    die_with_parent()
    put_spans_on_every_output()
    uvloop.run(serve())
