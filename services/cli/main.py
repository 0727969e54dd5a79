"""The `millrace` command: its arguments, and one clear line for whatever goes wrong."""

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Column, Table

from services.cli.chat import chat
from services.cli.demo import DemoOptions, demo
from services.cli.follow import follow_or_stop
from services.cli.run_file import read_run_file
from services.cli.run_summary import near, show_summary
from services.cli.run_view import ledger_text
from services.cli.runs_client import RunsClient
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.orchestrator import RunState, RunStatus

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
URL = "http://127.0.0.1:8000"
SHOWN_TRAJECTORIES = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 1 it failed, 2 bad input, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace, Console], int] = arguments.command
    console = Console()
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        return command(arguments, console)
    except InvalidInput as problem:
        errors.print(f"error: {problem.field}: {problem.value!r} -> {problem.fix}")
        return BAD_INPUT
    except NotReady as problem:
        errors.print(f"error: {problem}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def run_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace run`: start a run and follow it."""
    config = read_run_file(arguments.file, seed=arguments.seed, steps=arguments.steps)
    with RunsClient(arguments.url) as client:
        status = client.start(config, resume=arguments.resume)
        console.print(f"[bold]{status.run_id}[/] in {near(status.run_dir)}")
        return end_of_run(client, follow_or_stop(client, status, console), console)


def end_of_run(client: RunsClient, status: RunStatus, console: Console) -> int:
    """Show how a run ended; returns the exit status that says so."""
    show_summary(status, client.trajectories(status.run_id, SHOWN_TRAJECTORIES), console)
    if status.state == RunState.FINISHED:
        return 0
    return INTERRUPTED if status.state == RunState.STOPPED else FAILED


def status_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace status`: all runs, or one of them in full."""
    with RunsClient(arguments.url) as client:
        if arguments.run_id is None:
            console.print(_listing(client.runs()))
        else:
            status = client.status(arguments.run_id)
            for name, value in status.model_dump(mode="json", exclude={"summary"}).items():
                shown = ledger_text(status.ledger) if name == "ledger" else value
                console.print(f"{name:18} {shown}", markup=False, soft_wrap=True)
    return 0


def stop_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace stop`: end a run, its progress kept."""
    with RunsClient(arguments.url) as client:
        status = client.stop(arguments.run_id)
    console.print(f"{status.run_id}: {status.state} after {status.step} train steps")
    return 0


def chat_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace chat`: talk to the served model."""
    chat(arguments.url, arguments.model, arguments.message, console)
    return 0


def check_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace check`: check a deployment file without a cluster."""
    # Ray Serve takes seconds to import; only this command needs it at once.
    from services.cli.deployment import Deployment

    deployment = Deployment.read(arguments.file)
    console.print(f"{arguments.file} is good: {', '.join(deployment.names)}")
    return 0


def demo_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace demo`: a private cluster, the example, and nothing left behind."""
    options = DemoOptions(seed=arguments.seed, port=arguments.port, steps=arguments.steps)
    return demo(options, console)


def _listing(runs: list[RunStatus]) -> Table:
    table = Table(Column("run", overflow="fold"), "state", "step", "reward", "held-out", "seconds")
    for run in runs:
        rates = [f"{x:.2f}" if x is not None else "-" for x in (run.reward, run.heldout_pass_rate)]
        steps = f"{run.step}/{run.steps}"
        table.add_row(run.run_id, run.state, steps, *rates, f"{run.elapsed_s:.0f}")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millrace", description="Reinforcement learning of language models on Ray."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    served = argparse.ArgumentParser(add_help=False)
    served.add_argument("--url", default=URL, help=f"where the router answers ({URL})")

    run = commands.add_parser("run", parents=[served], help="start a run and follow it")
    run.add_argument("file", help="run file, such as examples/tiny_code/run.yaml")
    run.add_argument("--seed", type=int, help="instead of the file's")
    run.add_argument("--steps", type=int, help="instead of the file's")
    run.add_argument("--resume", metavar="RUN_ID", help="go on with an earlier run")
    run.set_defaults(command=run_command)

    status = commands.add_parser("status", parents=[served], help="show all runs, or one")
    status.add_argument("run_id", nargs="?")
    status.set_defaults(command=status_command)

    stop = commands.add_parser("stop", parents=[served], help="end a run, its progress kept")
    stop.add_argument("run_id")
    stop.set_defaults(command=stop_command)

    talk = commands.add_parser("chat", parents=[served], help="talk to the served model")
    talk.add_argument("message", nargs="?", help="one message; without it a conversation")
    talk.add_argument("--model", help="served model name (the first one)")
    talk.set_defaults(command=chat_command)

    check = commands.add_parser("check", help="check a deployment file without a cluster")
    check.add_argument("file", help="such as deploy/laptop.yaml")
    check.set_defaults(command=check_command)

    demo = commands.add_parser("demo", help="train the example on a private local cluster")
    demo.add_argument("--seed", type=int, default=0, help="of model and run (0)")
    demo.add_argument("--port", type=int, default=8000, help="of the HTTP API (8000)")
    demo.add_argument("--steps", type=int, help="train steps instead of the run file's")
    demo.set_defaults(command=demo_command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
