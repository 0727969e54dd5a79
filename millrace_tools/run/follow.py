"""Follows a run to its end, even if the connection is lost for a while."""

import time

from rich.console import Console

from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.run.run_view import RunView
from millrace_tools.run.step_log import StepLog
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunStatus

_POLL_S = 0.5
_SILENCE_S = 60.0


def follow(
    client: RunsClient, status: RunStatus, console: Console, *, poll_s: float = _POLL_S
) -> RunStatus:
    """Show the run until it has ended.

    Raises:
        NotReady: the orchestrator has not answered for a minute.
        InvalidInput: it does not know the run any more.
    """
    heard = time.monotonic()
    log = StepLog(status.run_dir)
    with RunView(console) as view:
        while True:
            view.show(status, log.new(status))
            if status.state in ENDED:
                return status
            time.sleep(poll_s)
            try:
                status = client.status(status.run_id)
                heard = time.monotonic()
            except (NotReady, InvalidInput) as error:
                gone = isinstance(error, InvalidInput) and error.field != "--url"
                if gone or time.monotonic() - heard > _SILENCE_S:
                    raise


def follow_or_stop(client: RunsClient, status: RunStatus, console: Console) -> RunStatus:
    """Follow a run as `follow` does; Ctrl-C asks it to stop, and a second Ctrl-C leaves it alone.

    Raises:
        KeyboardInterrupt: a second Ctrl-C.
    """
    try:
        return follow(client, status, console)
    except KeyboardInterrupt:
        console.print("Stopping after the train step in progress; Ctrl-C again to leave it.")
        return client.control(status.run_id, "stop")
