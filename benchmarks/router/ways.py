"""Engines, and the ways to them: directly, through the router, through its peers."""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import Usage
from benchmarks.report import MIB, ROOT
from benchmarks.router.child_process import Child
from millrace_tools.capacity.machine import free_port

SHIPPED, PLAIN = "as shipped", "plain vLLM"
PROXY, HAPROXY = "Serve's proxy", "Serve's HAProxy"
TOKEN_S = 1.0
"""How long a mock engine takes for a token."""


@dataclass(frozen=True)
class Way:
    """How clients get to the engines.

    Attributes:
        name: in tables.
        urls: where they send requests, in turn.
        children: processes on the way.
    """

    name: str
    urls: tuple[str, ...]
    children: tuple[Child, ...]

    def usage(self) -> Usage:
        """CPU seconds so far by process."""
        total: Usage = {}
        for child in self.children:
            for name, seconds in child.usage().items():
                total[name] = total.get(name, 0.0) + seconds
        return total


Engine = tuple[Child, str]


@contextmanager
def real_engine(folder: Path) -> Iterator[list[Engine]]:
    """vLLM with the example's model, at policy version 3."""
    model = ROOT / "models" / "tiny_code-seed0"
    maker = ["-m", "examples.tiny_code.make_model", "--seed", "0", "--out", str(model)]
    subprocess.run([sys.executable, *maker], cwd=ROOT, check=True, timeout=180)
    command = [
        *("benchmarks.router.plain_vllm", "--model", str(model)),
        *("--served-model-name", "tiny_code", "--host", "127.0.0.1"),
        *("--max-model-len", "512", "--max-num-seqs", "256", "--dtype", "float32"),
        *("--kv-cache-memory-bytes", str(256 * MIB), "--enforce-eager", "--enable-scale-out"),
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
        # As rollout servers do: with a process for one worker, both would wait by spinning.
        "--distributed-executor-backend",
        "services.rollout_server.engine.vllm_patches.executors.OneWorker",
        *("--logprobs-mode", "processed_logprobs"),
    ]
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with _engine("vLLM", command, folder, **threads) as engine:
        yield [engine]


@contextmanager
def mock_engines(folder: Path) -> Iterator[list[Engine]]:
    """Two of them, so that neither is what is measured."""
    command = ["benchmarks.router.mock_engine", "--token-s", str(TOKEN_S)]
    with _engine("mock 0", command, folder) as one, _engine("mock 1", command, folder) as other:
        yield [one, other]


@contextmanager
def _engine(
    name: str, command: Sequence[str], folder: Path, **environment: str
) -> Iterator[Engine]:
    """A module's server on a free port."""
    port = free_port()
    command = [sys.executable, "-m", *command, "--port", str(port)]
    child = Child(name, command, folder, **environment)
    try:
        child.wait_until_up(f"{_local(port)}/health")
        yield child, _local(port)
    finally:
        child.end()


@contextmanager
def ways(
    folder: Path, engines: Sequence[Engine], model: str, options: argparse.Namespace
) -> Iterator[list[Way]]:
    """All ways that exist here and are wanted; what is left out says why."""
    children, urls = tuple(child for child, _ in engines), [url for _, url in engines]
    with ExitStack() as stack:
        found: list[Way] = []
        for launch in _launches(urls, model, options):
            child = Child(launch.name, launch.command, folder, **launch.environment)
            stack.callback(child.end)
            try:
                for url in launch.ways.values():
                    child.wait_until_up(f"{url}/v1/models")
            except RuntimeError as failure:
                print(f"{launch.name} is left out: {failure}", file=sys.stderr)
                continue
            found += [Way(name, (url,), (child, *children)) for name, url in launch.ways.items()]
        found.insert(1, Way(PLAIN, tuple(urls), children))
        yield [way for way in found if way.name == PLAIN or options.only in way.name]


@dataclass(frozen=True)
class _Launch:
    """A process to start, and the addresses that it opens."""

    name: str
    command: list[str]
    ways: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)


def _launches(engines: list[str], model: str, options: argparse.Namespace) -> Iterator[_Launch]:
    program = [sys.executable, "-m", "benchmarks.router.fixed_router"]
    program += ["--model", model, "--engines", *engines, "--port"]
    port, own = free_port(), free_port()
    ways = {SHIPPED: _local(own), PROXY: _local(port)}
    yield _Launch("Serve", [*program, str(port), "--own-port", str(own)], ways)
    if options.only in HAPROXY:
        port = free_port()
        switches = {  # with ports that another cluster does not have
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        }
        yield _Launch("HAProxy", [*program, str(port)], {HAPROXY: _local(port)}, switches)
    if options.peers is None:
        print("other routers are left out: no --peers", file=sys.stderr)
        return
    yield from _peers(engines, options.peers)


def _peers(engines: list[str], environment: Path) -> Iterator[_Launch]:
    for peer, launch in {"vllm-router": [], "sglang-router": ["launch"]}.items():
        executable = environment / "bin" / peer
        if not executable.exists():
            print(f"{peer} is left out: not in {environment}", file=sys.stderr)
            continue
        port = free_port()
        command = [str(executable), *launch, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--policy", "round_robin", "--worker-urls", *engines]
        command += ["--prometheus-port", str(free_port())]
        yield _Launch(peer, command, {peer: _local(port)})
    print("ray.serve.llm is left out: it needs ray[llm], with a vLLM of its own", file=sys.stderr)


def _local(port: int) -> str:
    return f"http://127.0.0.1:{port}"
