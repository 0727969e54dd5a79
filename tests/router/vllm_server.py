"""Runs vLLM's own server with policy versions on every chunk; started by `vllm_process`.

The first two arguments are ports of further applications of vLLM's on the same engine: with a
tool and a reasoning parser, and with a tool parser only, because a reasoning parser takes what
a grammar makes from the first token on for thought. More servers would take longer to start.
"""

import argparse
import asyncio
import copy
import sys
from typing import Any

from services.observability.garbage import heavy_imports

with heavy_imports():
    import uvicorn
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.launchers.launcher import NoSignalServer
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    from services.rollout_server.engine.vllm_patches.engine_fork import fork_engine_processes
    from services.rollout_server.engine.vllm_patches.version_spans import put_spans_on_every_output
    from services.rollout_server.http.render_and_generate import RenderAndGenerate


async def _serve(args: Any, ports: list[int]) -> None:
    usage = UsageContext.OPENAI_API_SERVER
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage)
    fork_engine_processes()  # a spawned one would import everything again
    engine = AsyncLLM.from_vllm_config(config, usage_context=usage)
    # Parsers only in front of the engine, so that its grammars hold from the first token on and a
    # test can choose what is thought.
    reasoning = copy.copy(args.structured_outputs_config)
    reasoning.reasoning_parser = "deepseek_r1"
    tools = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
    parsers: tuple[dict[str, Any], ...] = (
        {},
        tools | {"structured_outputs_config": reasoning},
        tools,
    )
    try:
        async with asyncio.TaskGroup() as applications:
            for port, changes in zip((args.port, *ports), parsers, strict=True):
                changed = argparse.Namespace(**{**vars(args), **changes, "port": port})
                applications.create_task(_serve_application(engine, changed))
    finally:
        engine.shutdown()


async def _serve_application(engine: Any, args: Any) -> None:
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    config = uvicorn.Config(
        RenderAndGenerate(app), host=args.host, port=args.port, log_level="warning"
    )
    app.state.server = NoSignalServer(config)
    await app.state.server.serve()


if __name__ == "__main__":
    put_spans_on_every_output()
    ports = [int(sys.argv.pop(1)) for _ in range(2)]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(args)
    asyncio.run(_serve(args, ports))
