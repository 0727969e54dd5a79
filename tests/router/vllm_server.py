"""Runs vLLM's own server with policy versions on every chunk; started by test_real_vllm."""

import asyncio

from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.rollout_server.version_spans import put_spans_on_every_output

if __name__ == "__main__":
    put_spans_on_every_output()
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(args)
    asyncio.run(run_server(args))
