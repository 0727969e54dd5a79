"""`millrace env try`: a few episodes against any endpoint, and what was said in them."""

import argparse
import asyncio
import logging
import tempfile
import textwrap
from typing import Any

from rich.console import Console

from millrace_tools.audit.named import ENVIRONMENT, run_file_of
from millrace_tools.command import FAILED, command, option
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task

_SHOWN = 2000


@command(
    "env",
    option("action", choices=["try"]),
    *ENVIRONMENT,
    option("--url", required=True, help="of an OpenAI-compatible server, without /v1"),
    option("--model", help="as that server calls it; left out, the run file's"),
    option("--key-env", metavar="NAME", help="environment variable with its API key"),
    option("--tasks", type=int, default=3, help="episodes, each of another task (3)"),
    option("--parallel", type=int, default=3, help="episodes at a time (3)"),
    option("--timeout", type=float, default=300.0, help="seconds of one episode (300)"),
    option("--deployment", metavar="FILE", help="the Serve file that registers your graders"),
    option("--agent", metavar="COMMAND", help="plays tasks of `environment: external`"),
)
def env(arguments: argparse.Namespace, console: Console) -> int:
    """Play a few episodes of an environment against any endpoint, without a deployment.

    Prints what was said, done and rewarded; status 1 if an episode has no reward.

    Raises:
        InvalidInput: an option, the run file or the environment cannot be used.
    """
    for name in ("tasks", "parallel", "timeout"):
        if (value := getattr(arguments, name)) <= 0:
            raise InvalidInput(f"--{name}", value, "It must be above 0.")
    logging.getLogger("millrace.reward_service").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="millrace-try-") as folder:
        arguments.out = folder
        arguments.run_file = run_file_of(arguments)
        return asyncio.run(_tried(arguments, console))


async def _tried(arguments: argparse.Namespace, console: Console) -> int:
    # Graders take a second to import.
    from millrace_tools.audit.opened import opened
    from millrace_tools.audit.policy.forwarded_policy import forwarded

    async with (
        forwarded(arguments) as policy,
        opened(arguments, policy) as (tasks, subject),
    ):
        outcomes = await subject.play_all(tasks, [None] * len(tasks))
        for task, outcome in zip(tasks, outcomes, strict=True):
            _show_task(task, console)
            for exchange in policy.exchanges[outcome.episode]:
                _show_last(exchange.asked, console)
                _show_answer(exchange.answered, exchange.problem, console)
            took = f"{outcome.calls} calls, {outcome.seconds:.2f} s"
            if outcome.reward is None:
                print_line(f"no reward: {outcome.reason} ({took})\n", console, "bold red")
            else:
                print_line(f"reward {outcome.reward:g} ({took})\n", console, "bold")
    return 0 if all(one.reward is not None for one in outcomes) else FAILED


def _show_task(task: Task, console: Console) -> None:
    played = task.environment or (task.grader.kind if task.grader else "nothing")
    print_line(f"{task.task_id} ({played})", console, "bold")


def _show_last(asked: list[dict[str, Any]], console: Console) -> None:
    """What is new since the answer before it."""
    new = asked
    for place in range(len(asked) - 1, -1, -1):
        if asked[place].get("role") == "assistant":
            new = asked[place + 1 :]
            break
    for message in new:
        _say(str(message.get("role")), str(message.get("content")), console)


def _show_answer(answered: dict[str, Any] | None, problem: str, console: Console) -> None:
    if answered is None:
        _say("error", problem, console)
        return
    for choice in answered.get("choices") or ():
        message = choice.get("message") or {"content": choice.get("text")}
        _say("assistant", str(message.get("content") or ""), console)
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            _say("tool call", f"{function.get('name')} {function.get('arguments')}", console)


def _say(who: str, what: str, console: Console) -> None:
    shown = what if len(what) <= _SHOWN else f"{what[:_SHOWN]} ... ({len(what)} characters)"
    print_line(textwrap.indent(f"{who}: {shown}", "  "), console)
