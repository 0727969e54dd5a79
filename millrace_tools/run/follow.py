"""Follows a run to its end, even if the connection is lost for a while."""

import time

from rich.console import Console

from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.output import print_line
from millrace_tools.run.run_view import RunView
from millrace_tools.run.step_log import StepLog
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunStatus

_POLL_S = 0.5
_SILENCE_S = 60.0


class RunLost(NotReady):
    """The orchestrator does not answer any more, or does not know the run; its files stay."""


def follow(
    client: RunsClient, status: RunStatus, console: Console, *, poll_s: float = _POLL_S
) -> RunStatus:
    """Show the run until it has ended.

    Raises:
        RunLost: the orchestrator has not answered for a minute, or does not know the run any
            more, as after a restart of the whole cluster.
    """
    heard, silent = time.monotonic(), False
    log = StepLog(status.run_dir)
    with RunView(console) as view:
        while True:
            view.show(status, log.new(status))
            if status.state in ENDED:
                return status
            time.sleep(poll_s)
            try:
                status = client.status(status.run_id)
                heard, silent = time.monotonic(), False
            except (NotReady, InvalidInput) as error:
                if isinstance(error, InvalidInput) and error.field == "run_id":
                    raise RunLost("this orchestrator does not know it; it is new") from error
                if time.monotonic() - heard > _SILENCE_S:
                    raise RunLost(f"no answer for {_SILENCE_S:.0f} s. {_said(error)}") from error
                if not silent:
                    print_line(f"no answer; asking again for {_SILENCE_S:.0f} s", console)
                silent = True


def follow_or_stop(client: RunsClient, status: RunStatus, console: Console) -> RunStatus:
    """Follow a run as `follow` does; Ctrl-C asks it to stop, and a second Ctrl-C leaves it alone.

    Raises:
        RunLost: as `follow`.
        KeyboardInterrupt: a second Ctrl-C.
    """
    try:
        return follow(client, status, console)
    except KeyboardInterrupt:
        console.print("Stopping after the train step in progress; Ctrl-C again to leave it.")
        try:
            return client.control(status.run_id, "stop")
        except (NotReady, InvalidInput) as error:
            raise RunLost(f"it could not be stopped. {_said(error)}") from error


def _said(error: NotReady | InvalidInput) -> str:
    return error.fix if isinstance(error, InvalidInput) else str(error)
