"""Runs other people's clients, unchanged, against a cluster as it is shipped, and writes the table.

    python -m tests.clients.matrix [--only NAME ...] [--keep FOLDER] [--record]

The cluster is deploy/laptop.yaml with a tool parser and API keys. Each client is
installed into an environment of its own (uv, npm) and runs its program of `programs/`; nothing may
be in flight when it ends. `--record` writes record.json and the table of docs/clients.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.report import markdown, with_table
from millrace_tools.capacity.machine import free_port
from millrace_tools.demo.demo import DemoOptions
from tests.clients.python_environment import do, python_with, version_of

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
RECORD = HERE / "record.json"
PAGE = HERE.parents[1] / "docs" / "clients.md"
CHECKS = (
    *("answer", "stream", "tools", "structured", "cancel", "fifty", "tokens", "responses"),
    "session",
)
MODEL = HERE.parents[1] / "models" / "outside_agent-seed0"
SERVED = "clerk"
"""The model of examples/outside_agent, which calls tools."""
KEY = "a-key-of-the-client-matrix"
PROGRAM_S, IDLE_S = 900.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client, and how it is installed.

    Attributes:
        program: file in `programs/`.
        packages: what it needs, by the names of PyPI or npm; the first one's version is recorded.
    """

    program: str
    packages: tuple[str, ...]

    @property
    def is_python(self) -> bool:
        """Else it is a program for Node."""
        return self.program.endswith(".py")


CLIENTS = {
    "openai": Client(program="openai_client.py", packages=("openai",)),
    "openai-agents": Client(program="openai_agents.py", packages=("openai-agents",)),
    "anthropic": Client(program="anthropic_client.py", packages=("anthropic",)),
    "litellm": Client(program="litellm_client.py", packages=("litellm",)),
    "langchain-openai": Client(program="langchain_client.py", packages=("langchain-openai",)),
    "pydantic-ai": Client(
        program="pydantic_ai_client.py", packages=("pydantic-ai-slim[openai,anthropic]",)
    ),
    "instructor": Client(program="instructor_client.py", packages=("instructor[anthropic]",)),
    "inspect-ai": Client(program="inspect_client.py", packages=("inspect-ai", "openai")),
    "mini-swe-agent": Client(program="mini_swe_agent.py", packages=("mini-swe-agent",)),
    "dspy": Client(program="dspy_client.py", packages=("dspy",)),
    "verifiers 0.1": Client(program="verifiers_01.py", packages=("verifiers==0.1.14",)),
    "verifiers 0.4": Client(program="verifiers_04.py", packages=("verifiers==0.4.0",)),
    "openai (JavaScript)": Client(program="openai.mjs", packages=("openai", "zod")),
    "ai (JavaScript)": Client(program="ai.mjs", packages=("ai", "@ai-sdk/openai", "zod")),
}


def install(client: Client, folder: Path) -> list[str]:
    """Install a client into `folder` unless it is there; returns the command of its program."""
    program = PROGRAMS / client.program
    if client.is_python:
        return [str(python_with(client.packages, folder)), str(program)]
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        do("npm", "install", "--silent", "--prefix", str(folder), *client.packages)
    # Node looks for packages beside the program.
    for one in PROGRAMS.glob("*.mjs"):
        (folder / one.name).write_text(one.read_text())
    return ["node", str(folder / program.name)]


def version(client: Client, folder: Path) -> str:
    """Of the client's first package."""
    if client.is_python:
        return version_of(client.packages[0], folder / "bin" / "python")
    package = folder / "node_modules" / client.packages[0] / "package.json"
    return str(json.loads(package.read_text())["version"])


def run_program(command: list[str], url: str) -> dict[str, str | None]:
    """Run a client's program; returns the error of each check, None where it passed."""
    environment = {
        **os.environ,
        "MODEL": SERVED,
        "MODEL_FOLDER": str(MODEL),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks another host at each start
        "DSPY_CACHEDIR": tempfile.gettempdir(),
    }
    with tempfile.TemporaryDirectory(prefix="client-") as folder:
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=PROGRAM_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"start": f"not ended after {PROGRAM_S:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"check"')]
    found = {one["check"]: one["error"] for one in map(json.loads, lines)}
    if not found or any(found.values()):
        print(done.stderr[-3000:], file=sys.stderr)
    return found or {"start": f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"}


def until_idle(url: str) -> str | None:
    """Wait until the router has nothing in flight; returns what is left."""
    deadline = time.monotonic() + IDLE_S
    load = None
    while time.monotonic() < deadline:
        headers = {"authorization": f"Bearer {KEY}"}
        load = httpx.get(f"{url}/v1/load", headers=headers, timeout=10).json()
        if not load["in_flight"]:
            return None
        time.sleep(0.2)
    return f"still in flight after {IDLE_S:g} s: {load}"


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of docs/clients.md."""
    head = ["client", "version", *CHECKS]
    lines = [
        [name, row["version"], *(_cell(row["checks"], check) for check in CHECKS)]
        for name, row in rows.items()
    ]
    return markdown([head, *lines])


def shown(page: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the table of these rows."""
    return with_table(page, "clients", "\n" + table(rows))


def _cell(found: Mapping[str, str | None], check: str) -> str:
    if check not in found:
        return ""
    return "fails" if found[check] else "yes"


def main() -> int:
    """Install, deploy, run all, and say what failed."""
    parser = argparse.ArgumentParser(description="Run clients against a cluster.")
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--keep", type=Path, help="folder of the environments, to use them again")
    parser.add_argument("--record", action="store_true", help="write record.json and the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clients-") as temporary:
        rows = run_all(options.only, options.keep or Path(temporary))
    if options.record:
        known = {**json.loads(RECORD.read_text()), **rows} if RECORD.exists() else rows
        rows = {name: known[name] for name in CLIENTS if name in known}
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(shown(PAGE.read_text(), rows))
    print(table(rows))
    failed = [(name, check, error) for name, row in rows.items()
              for check, error in row["checks"].items() if error]  # fmt: skip
    for name, check, error in failed:
        print(f"{name}: {check}: {error}")
    return bool(failed)


def run_all(names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Each client's version and checks."""
    folders = {name: folder / Path(CLIENTS[name].program).stem for name in names}
    commands = {name: install(CLIENTS[name], folders[name]) for name in names}
    rows: dict[str, dict[str, Any]] = {}
    options = DemoOptions(seed=0, port=free_port(), steps=None)
    do(sys.executable, "-m", "examples.outside_agent.make_model")
    keys = folder / "keys.yaml"
    keys.write_text(f"- {{name: matrix, key: {KEY}}}\n")
    os.environ["MILLRACE_API_KEY"] = os.environ["MILLRACE_ROUTER_KEY"] = KEY
    with deployed(options, Console(), **_arguments(str(keys))):
        for name in names:
            began = time.monotonic()
            found = run_program(commands[name], options.url)
            left = until_idle(options.url)
            if left is not None:
                found["cancel"] = left
            rows[name] = {"version": version(CLIENTS[name], folders[name]), "checks": found}
            print(f"{name}: {time.monotonic() - began:.0f} s: {found}", flush=True)
    return rows


def _arguments(keys: str) -> dict[str, dict[str, Any]]:
    access = {"access": {"api_keys_file": keys}}
    key = {"router_key_env": "MILLRACE_ROUTER_KEY"}
    engine = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    model = {"model": str(MODEL)}
    return {
        "trainer": model,
        "rollout_server": {
            **model,
            "served_model_name": SERVED,
            "max_model_len": 2048,
            "max_num_seqs": 64,
            "engine_args": engine,
        },
        "router": access,
        "orchestrator": {**access, **key},
        "page": {**access, **key},
    }


if __name__ == "__main__":
    sys.exit(main())
