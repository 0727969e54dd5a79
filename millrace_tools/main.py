"""The `millrace` command: its arguments, and one clear line for whatever goes wrong."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from rich.console import Console

from millrace_tools.chat import ChatOptions, chat
from millrace_tools.client.runs_client import URL, RunsClient
from millrace_tools.client.served import Served
from millrace_tools.cluster.member_listing import show_members
from millrace_tools.cluster.version_listing import show_versions
from millrace_tools.demo.demo import DemoOptions, demo
from millrace_tools.demo.init import add_init_command
from millrace_tools.deploy.bring_up import wait_until_running
from millrace_tools.deploy.check import add_check_command
from millrace_tools.deploy.dry_run import explain
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.doctor.command import add_doctor_command
from millrace_tools.export import add_export_command
from millrace_tools.grade import add_grade_command
from millrace_tools.run.chaos import add_chaos_command
from millrace_tools.run.follow import ENDED, follow_or_stop
from millrace_tools.run.run_commands import active_run, add_commands
from millrace_tools.run.run_listing import show_run, show_runs
from millrace_tools.run.run_summary import near, show_how_to_go_on, show_summary
from millrace_tools.top.command import add_top_command
from millrace_tools.view import add_view_command
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunState, RunStatus
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlFailed,
    Hold,
    check_control,
)

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
SHOWN_TRAJECTORIES = 1000
WAIT_S = 300.0
_SHOWN_VALUE = 120  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 1 it failed, 2 bad input, 130 interrupted."""
    arguments = command_parser().parse_args(argv)
    command: Callable[[argparse.Namespace, Console], int] = arguments.command
    console = Console()
    try:
        status = command(arguments, console)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # as by `| head`: nobody wants the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except InvalidInput as problem:
        _show_problem(problem)
        return BAD_INPUT
    except (NotReady, ControlFailed) as problem:
        _errors().print(f"error: {problem}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def wait_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace wait`: return when the services can be used."""
    with Served(arguments.url) as served:
        wait_until_running(served, console, timeout_s=arguments.timeout)
        leased = served.leased()
    replicas = f"{leased} replica{'s' if leased != 1 else ''}"
    console.print(f"Ready at {served.url}, {replicas} leased.", highlight=False, soft_wrap=True)
    return 0


def run_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace run`: start a run and follow it."""
    config = read_run_file(arguments.file, seed=arguments.seed, steps=arguments.steps)
    if arguments.dry_run:
        problems = explain(config, arguments.deployment, console)
        for problem in problems:
            _show_problem(problem)
        return BAD_INPUT if problems else 0
    with RunsClient(arguments.url) as client:
        status = client.start(config, resume=arguments.resume)
        console.print(f"[bold]{status.run_id}[/] in {near(status.run_dir)}", soft_wrap=True)
        return end_of_run(client, follow_or_stop(client, status, console), console)


def end_of_run(client: RunsClient, status: RunStatus, console: Console) -> int:
    """Show how a run ended; returns the exit status that says so."""
    show_summary(status, client.trajectories(status.run_id, SHOWN_TRAJECTORIES), console)
    if status.state == RunState.FINISHED:
        return 0
    show_how_to_go_on(status, client.url, console)
    return INTERRUPTED if status.state == RunState.STOPPED else FAILED


def status_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace status`: all runs, or one of them in full."""
    with RunsClient(arguments.url) as client:
        if arguments.run_id is None:
            show_runs(client.runs(), console)
        else:
            show_run(client.status(arguments.run_id), console)
    return 0


def stop_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace stop`: end a run, its progress kept; without an id the one that is active."""
    with RunsClient(arguments.url) as client:
        status = (
            active_run(client, "stop")
            if arguments.run_id is None
            else client.status(arguments.run_id)
        )
        if status.state in ENDED:
            console.print(f"{_ending(status)}; it was over already", soft_wrap=True)
            return 0
        status = client.stop(status.run_id)
        console.print(_ending(status), soft_wrap=True)
        if status.state != RunState.FINISHED:  # which it may have been first
            show_how_to_go_on(status, client.url, console)
    return 0


def _ending(status: RunStatus) -> str:
    return f"{status.run_id}: {status.state} after {status.step} train steps"


def versions_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace versions`: what became of the newest weight versions."""
    # Ray takes seconds to import; only commands that join the cluster need it.
    from millrace_tools.client.bus_client import BusClient

    with BusClient(arguments.address) as client:
        show_versions(client.versions(), console)
    return 0


def replica_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace replica`: list the replicas, or have one pause, sleep, end its requests, ..."""
    if arguments.replica_id is not None:  # before seconds go into joining
        check_control(arguments.action or "", arguments.level)
    from millrace_tools.client.bus_client import BusClient

    with BusClient(arguments.address) as client:
        if arguments.replica_id is None:
            show_members(client.members(), console)
            return 0
        done = client.control(arguments.replica_id, arguments.action, arguments.level)
    held = "" if done.held is Hold.NONE else f"; it is {done.held}"
    console.print(
        f"{done.replica_id}: {arguments.action} done in {done.seconds:.2f} s{held}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0


def chat_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace chat`: talk to the served model."""
    options = ChatOptions(
        url=arguments.url,
        model=arguments.model,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
    )
    chat(options, arguments.message, console)
    return 0


def demo_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace demo`: a private cluster, the example, and nothing left behind."""
    options = DemoOptions(seed=arguments.seed, port=arguments.port, steps=arguments.steps)
    return demo(options, console)


def _show_problem(problem: InvalidInput) -> None:
    _errors().print(f"error: {problem.field}: {_shown(problem.value)} -> {problem.fix}")


def _errors() -> Console:
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else text[: _SHOWN_VALUE - 3] + "..."


def command_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(
        prog="millrace", description="Reinforcement learning of language models on Ray."
    )
    installed = f"%(prog)s {version('millrace')}"
    parser.add_argument("--version", action="version", version=installed)
    commands = parser.add_subparsers(required=True, metavar="command")
    served = argparse.ArgumentParser(add_help=False)
    served.add_argument("--url", default=URL, help=f"where the router answers ({URL})")
    _add_service_commands(commands, served)
    _add_run_commands(commands, served)
    add_commands(commands, served)
    _add_bus_commands(commands)
    add_export_command(commands)
    add_grade_command(commands)
    add_doctor_command(commands)
    add_view_command(commands)
    add_chaos_command(commands, served)
    add_top_command(commands, served)

    add_init_command(commands)
    demo = commands.add_parser("demo", help="train the example on a private local cluster")
    demo.add_argument("--seed", type=int, default=0, help="of model and run (0)")
    demo.add_argument("--port", type=int, default=8000, help="of the HTTP API (8000)")
    demo.add_argument("--steps", type=int, help="train steps instead of the run file's")
    demo.set_defaults(command=demo_command)
    return parser


def _add_service_commands(commands: Any, served: argparse.ArgumentParser) -> None:
    add_check_command(commands)
    wait = commands.add_parser("wait", parents=[served], help="wait until the services are up")
    wait.add_argument("--timeout", type=float, default=WAIT_S, help=f"seconds ({WAIT_S:g})")
    wait.set_defaults(command=wait_command)

    talk = commands.add_parser("chat", parents=[served], help="talk to the served model")
    talk.add_argument("message", nargs="?", help="one message; without it a conversation")
    talk.add_argument("--model", help="served model name (the first one)")
    talk.add_argument("--temperature", type=float, help="0 for the likeliest answer")
    talk.add_argument("--max-tokens", type=int, help="longest answer (what fits)")
    talk.set_defaults(command=chat_command)


def _add_bus_commands(commands: Any) -> None:
    joining = argparse.ArgumentParser(add_help=False)
    joining.add_argument("--address", help="of the Ray cluster (RAY_ADDRESS, or the one here)")
    versions = commands.add_parser(
        "versions", parents=[joining], help="show what became of the newest weight versions"
    )
    versions.set_defaults(command=versions_command)

    replica = commands.add_parser(
        "replica", parents=[joining], help="list the replicas, or have one pause, sleep, ..."
    )
    replica.add_argument("replica_id", nargs="?", help="without it, all are listed")
    replica.add_argument("action", nargs="?", help=", ".join(ControlAction))
    replica.add_argument("--level", type=int, help="of sleep: 1 keeps the weights, 2 drops them")
    replica.set_defaults(command=replica_command)


def _add_run_commands(commands: Any, served: argparse.ArgumentParser) -> None:
    run = commands.add_parser("run", parents=[served], help="start a run and follow it")
    run.add_argument("file", help="run file, such as examples/tiny_code/run.yaml")
    run.add_argument("--seed", type=int, help="instead of the file's")
    run.add_argument("--steps", type=int, help="instead of the file's")
    run.add_argument("--resume", metavar="RUN_ID", help="resume an earlier run")
    run.add_argument("--dry-run", action="store_true", help="explain it, and start nothing")
    run.add_argument("--deployment", metavar="FILE", help="of --dry-run: for this Serve file")
    run.set_defaults(command=run_command)

    status = commands.add_parser("status", parents=[served], help="show all runs, or one")
    status.add_argument("run_id", nargs="?", help="without it, all are listed")
    status.set_defaults(command=status_command)

    stop = commands.add_parser("stop", parents=[served], help="end a run, its progress kept")
    stop.add_argument("run_id", nargs="?", help="the active one, if left out")
    stop.set_defaults(command=stop_command)


if __name__ == "__main__":
    sys.exit(main())
