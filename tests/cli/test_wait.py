"""`millrace wait`, against an HTTP server that stands in for the services and the dashboard."""

import os
from typing import Any

import pytest

from millrace_tools.main import main
from tests.cli.conftest import Orchestra

TRACE = """Traceback (most recent call last):
services.protocol.errors.InvalidInput: model: '/none' is not usable. There is no such folder.
"""


def _health(leased: int) -> tuple[int, dict[str, int]]:
    return (200 if leased else 503), {"leased_replicas": leased, "members": 2}


def _application(status: str, message: str = "") -> dict[str, Any]:
    replicas = [{"state": "RUNNING"}] if status == "RUNNING" else []
    deployment = {"status": status, "message": "", "replicas": replicas}
    return {"status": status, "message": message, "deployments": {"one": deployment}}


def _dashboard(orchestra: Orchestra, port: int, **applications: dict[str, Any]) -> None:
    details = {"http_options": {"port": port}, "applications": applications}
    orchestra.replies["GET", "/api/serve/applications/"] = (200, details)


def _port(orchestra: Orchestra) -> int:
    return int(orchestra.url.rpartition(":")[2])


def test_it_waits_for_the_orchestrator_and_a_lease(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/health"] = [(404, "no route"), _health(0), _health(0), _health(1)]
    orchestra.replies["GET", "/v1/runs"] = [(404, {"detail": "Not Found"}), (200, [])]
    assert main(["wait", "--url", orchestra.url, "--timeout", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    up = [line.split()[:4] for line in lines if "up after" in line]
    names = ["orchestrator", "rollout_server", "router"]
    assert sorted(up) == [[name, "1", "up", "after"] for name in names]
    assert up[-1][0] == "rollout_server"
    assert lines[-1] == f"Ready at {orchestra.url}, 1 replica leased."


def test_what_is_missing_when_the_time_is_over_is_named_and_whether_the_machine_is_busy(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/health"] = _health(0)
    orchestra.replies["GET", "/v1/runs"] = (404, {"detail": "Not Found"})
    cores = os.cpu_count() or 1
    missing = (
        "error: not all services are up after 0 s: "
        "rollout_server is not ready (no replica has weights and a lease); "
        f"orchestrator is not ready ({orchestra.url} has no /v1/runs)"
    )
    busy = f". This machine is busy: a load of {20 * cores} on {cores} cores"
    for load, said in ((0.5, ""), (20.0, busy)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load * cores, 0.0, 0.0))
        assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == 1
        assert capsys.readouterr().err == missing + said + "\n"


def test_nothing_listening_is_waited_for_and_then_said(
    closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wait", "--url", closed_url, "--timeout", "0"]) == 1
    assert f"router is not ready (nothing listens at {closed_url})" in capsys.readouterr().err


def test_an_application_without_an_address_is_waited_for_where_the_dashboard_knows_it(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    orchestra.replies["GET", "/health"] = _health(2)
    starting = _application("DEPLOYING", "waiting for a CPU")
    _dashboard(orchestra, _port(orchestra), reward_service=starting)
    assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == 1
    assert "reward_service is deploying (waiting for a CPU)" in capsys.readouterr().err
    _dashboard(orchestra, _port(orchestra), reward_service=_application("RUNNING"))
    assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == 0


def test_an_application_that_cannot_start_ends_the_wait_with_its_reason(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    _dashboard(orchestra, _port(orchestra), trainer=_application("DEPLOY_FAILED", TRACE))
    assert main(["wait", "--url", orchestra.url, "--timeout", "60"]) == 1
    expected = "trainer does not start: model: '/none' is not usable. There is no such folder."
    assert expected in capsys.readouterr().err


def test_the_dashboard_is_known_by_the_routers_own_port_too(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    router = _application("RUNNING")
    router["deployed_app_config"] = {"args": {"listen": {"port": _port(orchestra)}}}
    failed = _application("DEPLOY_FAILED", TRACE)
    _dashboard(orchestra, _port(orchestra) + 1, router=router, trainer=failed)
    assert main(["wait", "--url", orchestra.url, "--timeout", "60"]) == 1
    assert "trainer does not start" in capsys.readouterr().err


def test_the_dashboard_of_other_services_says_nothing(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    orchestra.replies["GET", "/health"] = _health(2)
    _dashboard(orchestra, _port(orchestra) + 1, trainer=_application("DEPLOY_FAILED", TRACE))
    assert main(["wait", "--url", orchestra.url, "--timeout", "60"]) == 0


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://[", "http://h:port", "ftp://h"])
def test_a_url_that_is_none_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait", "--url", url]) == 2
    assert "--url" in capsys.readouterr().err
