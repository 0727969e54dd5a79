"""Starts `vllm_server.py` and ends it, whatever becomes of it in between."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from millrace_tools.capacity.machine import free_port

MODEL = "tiny"
ALIAS = "policy"
"""Its name in what is written for users."""

# A model of random weights would fill its answers with blanks.
_GRAMMARS = json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})
_KV_CACHE_BYTES = 64 << 20
_UP_S = 360
"""It takes fifteen seconds on two idle cores, and far longer on busy ones."""

_ERROR_LINES, _TAIL_CHARACTERS = 40, 3000


class Urls(NamedTuple):
    """Where the applications of the engine listen: without parsers, with, only for tools."""

    plain: str
    parsing: str
    tools: str


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    version: int,
    names: Sequence[str] = (MODEL, ALIAS),
    options: Sequence[str] = (),
) -> Iterator[Urls]:
    """vLLM with the model in `folder / "model"` as this policy version, up and answering.

    `options` are further ones of `vllm serve`.
    """
    ports = [free_port() for _ in Urls._fields]
    urls = Urls(*(f"http://127.0.0.1:{port}" for port in ports))
    with (
        (folder / "log").open("wb") as log,
        # vLLM leaves sockets and a file behind; a socket's path must be short.
        tempfile.TemporaryDirectory(prefix="vllm-") as sockets,
    ):
        server = subprocess.Popen(
            [*_command(folder / "model", names, *ports), *options],
            env=_environment(sockets),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            for url in urls:
                _wait_until_up(url, server, folder / "log")
                # The first answer, and the first logprobs, take longer than a test's client waits.
                ask = {"model": names[0], "prompt": "a", "max_tokens": 2, "logprobs": 1}
                httpx.post(f"{url}/v1/completions", json=ask, timeout=_UP_S).raise_for_status()
            label = {"new_version": str(version)}
            httpx.post(f"{urls.plain}/update_weight_version", json=label).raise_for_status()
            yield urls
        finally:
            _end(server)


def _command(model: Path, names: Sequence[str], port: int, *more: int) -> list[str]:
    return [
        *(sys.executable, str(Path(__file__).with_name("vllm_server.py")), *map(str, more)),
        *("--model", str(model), "--served-model-name", *names),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"),
        # As in a replica: vLLM's own keeps a second process busy with waiting.
        *(
            "--distributed-executor-backend",
            "services.rollout_server.engine.vllm_patches.executors.OneWorker",
        ),
        *("--kv-cache-memory-bytes", str(_KV_CACHE_BYTES)),
        *("--enable-scale-out", "--enforce-eager", "--dtype", "float32"),
        *("--enable-prompt-tokens-details", "--structured-outputs-config", _GRAMMARS),
        "--enable-tokenizer-info-endpoint",
    ]


def _environment(sockets: str) -> dict[str, str]:
    return os.environ | {
        "VLLM_SERVER_DEV_MODE": "1",
        # A thread per core, bound to it, would fight with whatever else the machine does.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # As in a replica: with nothing compiled at the first request.
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "VLLM_RPC_BASE_PATH": sockets,
        "TMPDIR": sockets,
    }


def _wait_until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"vLLM did not start (exit status {server.poll()}):\n{_what_went_wrong(log)}")


def _what_went_wrong(log: Path) -> str:
    """The lines that name errors, then the tail: the cause comes long before the last line."""
    text = log.read_text(errors="replace")
    named = [line[:300] for line in text.splitlines() if "error" in line.lower()]
    return "\n".join([*named[:_ERROR_LINES], "--- the end of the log:", text[-_TAIL_CHARACTERS:]])


def _end(server: subprocess.Popen[bytes]) -> None:
    """The whole session: vLLM's engine core is a process of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(300)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait(300)
