"""`millrace demo`: trains the example's model, or on a task of one's own, on one machine."""

import argparse
import contextlib
import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from pydantic import ValidationError
from rich.console import Console

from millrace_tools.capacity.machine import check_folder, check_memory, check_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.command import command, option
from millrace_tools.demo.init import demo_model, is_clone, program, workplace, write_starter
from millrace_tools.demo.phases import Phases
from millrace_tools.deploy.file_kind import SERVE, refuse_other_kind
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.run_plan import RunPlan
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import arguments_of, move_to
from millrace_tools.run.follow import follow
from millrace_tools.run.run_summary import near, show_summary
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.protocol.yaml_text import load_yaml
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import environment

if TYPE_CHECKING:
    from millrace_tools.cluster.private_cluster import PrivateCluster

ROOT = workplace()
DEPLOY_FILE = ROOT / "deploy" / "laptop.yaml"
RUN_FILE = ROOT / "examples" / "tiny_code" / "run.yaml"
MEMORY_GIB = 4.0
TEMPORARY = "/tmp"
_TEMPORARY_MIB, _KEPT_MIB = 256, 64
MODEL_S = SERVICES_S = 600.0
"""Far more than it takes, for machines that are busy with other work as well."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of a demo.

    Attributes:
        seed: of the model, the engines and the run.
        port: of the HTTP API.
        steps: train steps, None for the run file's.
        folder: of a task of the user's, with a deployment and a run file; None for the example.
    """

    seed: int
    port: int
    steps: int | None
    folder: Path | None = None

    @property
    def url(self) -> str:
        """The URL of the router."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> Path:
        """The folder of the example's model."""
        return demo_model(self.seed)

    @property
    def deploy_file(self) -> Path:
        """The services."""
        return DEPLOY_FILE if self.folder is None else self.folder / "deploy.yaml"

    @property
    def run_file(self) -> Path:
        """The run."""
        return RUN_FILE if self.folder is None else self.folder / "run.yaml"

    def read_run(self) -> RunConfig:
        """The run; of a task of the user's, the run file alone says the seed.

        Raises:
            InvalidInput: the file cannot be used.
        """
        seed = self.seed if self.folder is None else None
        return read_run_file(self.run_file, seed=seed, steps=self.steps)


@command(
    "demo",
    option("folder", nargs="?", type=Path, help="of `init --task`, in place of the example"),
    option("--seed", type=int, default=0, help="of the example's model and run (0)"),
    option("--port", type=int, default=8000, help="of the HTTP API (8000)"),
    option("--steps", type=int, help="train steps instead of the run file's"),
)
def demo(arguments: argparse.Namespace, console: Console) -> int:
    """Train the example, or your task, on a private local cluster, which ends with the command.

    Raises:
        InvalidInput: the machine, a file or an argument does not fit.
        NotReady: a service does not come up.
    """
    options = DemoOptions(
        seed=arguments.seed, port=arguments.port, steps=arguments.steps, folder=arguments.folder
    )
    _check_files(options)
    content = _deployment(options)
    _check_machine(options)
    phases = Phases(console)
    with terminated_like_interrupted(), _model(content, options) as maker:
        # Importing Ray takes seconds, in which the model is already being made.
        from millrace_tools.cluster.private_cluster import PrivateCluster

        cores = max(2, os.cpu_count() or 2)
        with PrivateCluster(num_cpus=cores, engine=_engine_environment(content)) as cluster:
            try:
                status = _train(options, content, maker, cluster, phases, console)
            except (KeyboardInterrupt, SystemExit):
                console.print("Interrupted: shutting everything down.")
                raise
            except (NotReady, InvalidInput):
                logs = ROOT / "runs" / time.strftime("demo-failed-%Y%m%d-%H%M%S")
                cluster.keep_logs(logs)
                console.print(f"The services' logs are in {near(logs)}")
                raise
            with phases.phase("shutting everything down"):
                cluster.close()
    _say_what_next(options, status, phases, console)
    return 0 if status.state == RunState.FINISHED else 1


def resolved(data: Any, options: DemoOptions) -> Any:
    """The deployment file's content with this demo's port, and the example's model and seed."""
    content = copy.deepcopy(data)
    move_to(content, options.port)
    if options.folder is not None:
        return content
    arguments = arguments_of(content)
    for name in ("trainer", "rollout_server"):
        arguments[name] |= {"model": str(options.model), "seed": options.seed}
    return content


def _check_files(options: DemoOptions) -> None:
    """Check the arguments and the run before anything is started."""
    if options.seed < 0:
        raise InvalidInput("--seed", options.seed, "Give 0 or more.")
    if not is_clone():
        write_starter(ROOT)
    if options.folder is None:
        RunConfig.from_yaml(RUN_FILE)  # its tasks are made with the model
    else:
        if options.seed:
            raise InvalidInput("--seed", options.seed, f"{options.run_file} says it.")
        _check_run(options.read_run())


def _check_machine(options: DemoOptions) -> None:
    """Check port, memory and disks before anything is started."""
    check_port(options.port)
    check_memory(MEMORY_GIB)
    check_folder(TEMPORARY, _TEMPORARY_MIB, "Ray's session")
    for name in ("models", "runs"):
        check_folder(ROOT / name, _KEPT_MIB, "the demo")


def _check_run(run: RunConfig) -> None:
    """Read every task, so that no mistake is found only when the services are up."""
    for problem in RunPlan(run=run, tasks=TaskTable(run), cluster=None).problems():
        raise problem


def _deployment(options: DemoOptions) -> Any:
    """The content to deploy."""
    path = str(options.deploy_file)
    data = load_yaml(path)
    refuse_other_kind(data, SERVE, path)
    with contextlib.suppress(KeyError, TypeError, AttributeError):  # it is of another shape
        content = resolved(data, options)
        if "rollout_server" in arguments_of(content):
            return content
    fix = f"It needs the applications of {near(DEPLOY_FILE)}; ask `millrace check {path}`."
    raise InvalidInput("file", path, fix)


def _model(
    content: Any, options: DemoOptions
) -> contextlib.AbstractContextManager["subprocess.Popen[str] | None"]:
    """The process that makes the example's model; None where another model is served."""
    served = arguments_of(content)["rollout_server"].get("model")
    if isinstance(served, str) and Path(served).resolve() == options.model.resolve():
        return model_maker(options)
    return contextlib.nullcontext()


def _engine_environment(content: Any) -> dict[str, str] | None:
    """Of the rollout servers; None where the file is invalid, which its check reports."""
    try:
        config = RolloutServerConfig.model_validate(arguments_of(content)["rollout_server"])
    except ValidationError:
        return None
    return environment(config)


def _train(
    options: DemoOptions,
    content: Any,
    maker: subprocess.Popen[str] | None,
    cluster: "PrivateCluster",
    phases: Phases,
    console: Console,
) -> RunStatus:
    with phases.phase("starting Ray, and making the model and its tasks"):
        cluster.start()
        if maker is not None:
            finish_model(maker)
    with phases.phase(f"deploying {near(options.deploy_file)}"):
        replicas = cluster.deploy(content, console, timeout_s=SERVICES_S)
        wait_until_leased(options.url, replicas, timeout_s=SERVICES_S)
    console.print(f"          chat at {options.url}/v1", highlight=False)
    console.print(f"          watch it at {options.url}/", highlight=False)
    console.print(f"          metrics at {cluster.metrics_url}", highlight=False, soft_wrap=True)
    config = options.read_run()
    with RunsClient(options.url) as client, phases.phase(f"running {near(options.run_file)}"):
        status = client.start(config)
        (Path(status.run_dir) / "deploy.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        status = follow(client, status, console)
        show_summary(status, client.trajectories(status.run_id), console)
    return status


@contextlib.contextmanager
def model_maker(options: DemoOptions) -> Iterator[subprocess.Popen[str]]:
    """The example's own command, in a process of its own."""
    command = [sys.executable, "-m", "examples.tiny_code.make_model"]
    command += ["--seed", str(options.seed), "--out", str(options.model)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # does nothing where it has ended


def finish_model(maker: subprocess.Popen[str]) -> None:
    """Wait until the maker's model is there.

    Raises:
        NotReady: not in time, or it cannot be made.
    """
    try:
        output, _ = maker.communicate(timeout=MODEL_S)
    except subprocess.TimeoutExpired:
        raise NotReady(f"the model is not made after {MODEL_S:g} s") from None
    if maker.returncode != 0:
        lines = output.strip().splitlines() or [f"exit status {maker.returncode}"]
        raise NotReady(f"the model cannot be made: {lines[-1]}")


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack, so that everything is shut down."""

    def unwind(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, unwind) for number in signals]
    try:
        yield
    finally:
        for number, action in zip(signals, before, strict=True):
            signal.signal(number, action)


def _say_what_next(
    options: DemoOptions, status: RunStatus, phases: Phases, console: Console
) -> None:
    console.print(f"Everything is shut down; {phases.elapsed_s:.0f} s in all. What to try next:")
    view = (f"{program()} view {near(Path(status.run_dir))}", "curves, timeline, answers: a page")
    readme = f"less {near(options.run_file.with_name('README.md'))}"
    by_hand = (readme, "the pieces by hand: serve run, millrace run, chat")
    for suggestion, why in (view, by_hand, *_other_runs(options)):
        console.print(f"  {suggestion:60} [dim]{why}[/]", highlight=False, soft_wrap=True)


def _other_runs(options: DemoOptions) -> Iterator[tuple[str, str]]:
    if options.folder is not None:
        yield f"{program()} demo {options.folder}", "again, after a change of its files"
        return
    following = options.seed + 1
    again = f"make demo SEED={following}" if is_clone() else f"{program()} demo --seed {following}"
    yield again, "another model from the start"
    yield f"{program()} init --task NAME", "a task of your own, which runs as it is"
