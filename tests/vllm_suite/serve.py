"""A server as a test of vLLM's asks for it, with a model that fits a laptop.

    python -m tests.vllm_suite.serve SIDE MODEL [ARGUMENTS OF vllm serve]

`SIDE` is `vllm`, for vLLM's application, or `router`, for a router before it. It prints its
address once it answers, and ends with its standard input. The model is untrained, whatever
`MODEL` says, and LoRA adapters are further names of it. At the router an adapter is an external
backend, as it is in a deployment (docs/external-backends.md).
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.conftest import before
from tests.router.vllm_process import running

MODEL_FOLDER = "VLLM_SUITE_MODEL"
POSITIONS = 8192
LEFT_OUT = {
    "--dtype": 1,
    "--enable-lora": 0,
    "--max-lora-rank": 1,
    "--max-cpu-loras": 1,
    "--gpu-memory-utilization": 1,
    "--max-model-len": 1,
    "--seed": 1,
    "--tensor-parallel-size": 1,
}
"""Options that are about another model or a GPU, and how many values each has."""


@dataclass(frozen=True)
class Asked:
    """What a test asks of its server.

    Attributes:
        names: of the model.
        adapters: names of its LoRA adapters.
        max_model_len: tokens of prompt and answer.
        options: all others.
    """

    names: tuple[str, ...]
    adapters: tuple[str, ...]
    max_model_len: int
    options: tuple[str, ...]


def asked(model: str, arguments: Sequence[str]) -> Asked:
    """The arguments of `vllm serve`, read."""
    names, adapters, longest, options = [model], [], POSITIONS, []
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if option == "--lora-modules":
            while rest and not rest[0].startswith("--"):
                adapters.append(rest.pop(0).split("=")[0])
        elif option == "--served-model-name":
            names = []
            while rest and not rest[0].startswith("--"):
                names.append(rest.pop(0))
        elif option in LEFT_OUT:
            values = [rest.pop(0) for _ in range(LEFT_OUT[option])]
            if option == "--max-model-len":
                longest = min(int(values[0]), POSITIONS)
        else:
            options.append(option)
    return Asked(tuple(names), tuple(adapters), longest, tuple(options))


def main() -> None:
    """Serve until standard input ends."""
    side, model, *arguments = sys.argv[1:]
    told = asked(model, arguments)
    options = ("--max-model-len", str(told.max_model_len), *told.options)
    with tempfile.TemporaryDirectory(prefix="vllm-suite-") as folder:
        Path(folder, "model").symlink_to(os.environ[MODEL_FOLDER])
        names = told.names + told.adapters
        with running(Path(folder), version=3, names=names, options=options) as urls:
            if side == "vllm":
                print(urls.plain, flush=True)
                sys.stdin.read()
            else:
                asyncio.run(_route(urls.plain, told))


async def _route(url: str, told: Asked) -> None:
    backends = [{"url": url, "model": adapter} for adapter in told.adapters]
    cluster = await before(
        url, model=told.names[0], max_model_len=told.max_model_len, backends=backends
    )
    try:
        print(cluster.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await cluster.close()


if __name__ == "__main__":
    main()
