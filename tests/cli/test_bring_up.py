"""Waiting for a deployment: progress, failure and patience."""

import io

import pytest
from rich.console import Console

from millrace_tools.client.serve_details import ApplicationStatus
from millrace_tools.deploy.wait import reason, wait_until_leased, wait_until_running
from services.protocol.errors import NotReady
from tests.cli.conftest import Orchestra

_TRACE = """Replica abc failed to start:
Traceback (most recent call last):
  File "app.py", line 1, in build
services.protocol.errors.InvalidInput: model: '/none' is not usable. There is no such folder.
"""


class _Deployment:
    """Goes through its lists of states, one per question, and stays at the last."""

    def __init__(self, *rounds: list[ApplicationStatus]) -> None:
        self._rounds = list(rounds)

    def states(self) -> list[ApplicationStatus]:
        return self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]


def _app(name: str, status: str, message: str = "") -> ApplicationStatus:
    return ApplicationStatus(name=name, status=status, running=1, message=message)


def test_it_returns_when_every_application_runs() -> None:
    screen = io.StringIO()
    deployment = _Deployment(
        [_app("router", "NOT_STARTED"), _app("trainer", "DEPLOYING")],
        [_app("router", "RUNNING"), _app("trainer", "DEPLOYING")],
        [_app("router", "RUNNING"), _app("trainer", "RUNNING")],
    )
    wait_until_running(deployment.states, Console(file=screen), timeout_s=300)
    lines = [line.split()[0] for line in screen.getvalue().splitlines() if "up after" in line]
    assert lines == ["router", "trainer"]


@pytest.mark.parametrize("status", ["DEPLOY_FAILED", "DEPLOYING"])
def test_bad_input_found_on_the_cluster_ends_the_wait_at_once(status: str) -> None:
    deployment = _Deployment([_app("rollout_server", status, _TRACE)])
    with pytest.raises(NotReady) as caught:
        wait_until_running(deployment.states, Console(file=io.StringIO()), timeout_s=300)
    expected = "model: '/none' is not usable. There is no such folder."
    assert str(caught.value) == f"rollout_server does not start: {expected}"


def test_what_is_late_is_named() -> None:
    deployment = _Deployment([_app("router", "RUNNING"), _app("trainer", "DEPLOYING", "waiting")])
    with pytest.raises(NotReady, match="trainer is deploying \(waiting\)"):
        wait_until_running(deployment.states, Console(file=io.StringIO()), timeout_s=0)


def test_the_reason_is_the_last_error_of_a_traceback() -> None:
    assert reason("Traceback\n  File x\nOSError: no space\nRetrying\n") == "OSError: no space"
    assert reason("") == ""


def test_the_reason_within_serves_own_error_is_found() -> None:
    text = (
        "The deployment failed to start 3 times in a row. Error:\n"
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "app.py", line 42, in check_health\n'
        "services.protocol.errors.NotReady: weight bus: no answer in 300 s\n"
    )
    expected = "services.protocol.errors.NotReady: weight bus: no answer in 300 s"
    assert reason(text) == expected


def test_it_waits_for_every_lease(orchestra: Orchestra) -> None:
    orchestra.replies["GET", "/health"] = (200, {"leased_replicas": 2, "members": 2})
    wait_until_leased(orchestra.url, 2, timeout_s=300)
    orchestra.replies["GET", "/health"] = (200, {"leased_replicas": 1, "members": 2})
    with pytest.raises(NotReady, match="1 of 2"):
        wait_until_leased(orchestra.url, 2, timeout_s=1)


def test_a_router_that_is_not_there_yet_is_waited_for(closed_url: str) -> None:
    with pytest.raises(NotReady, match="0 of 1"):
        wait_until_leased(closed_url, 1, timeout_s=0.5)
