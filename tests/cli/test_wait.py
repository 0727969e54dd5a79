"""`millrace wait`, against an HTTP server that stands in for the services and the dashboard."""

import os
from pathlib import Path
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


def test_where_nothing_listens_and_no_cluster_is_here_the_wait_fails_at_once(
    closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wait", "--url", closed_url, "--timeout", "600"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --url: '{closed_url}' -> Nothing answers there.")
    assert "`serve run --non-blocking deploy/laptop.yaml`" in error


def test_nothing_listening_is_waited_for_where_the_dashboard_knows_the_services(
    orchestra: Orchestra,
    closed_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    port = int(closed_url.rpartition(":")[2])
    _dashboard(orchestra, port, router=_application("DEPLOYING"))
    assert main(["wait", "--url", closed_url, "--timeout", "0"]) == 1
    error = capsys.readouterr().err
    assert "router is deploying" in error
    assert f"orchestrator is not ready (nothing listens at {closed_url})" in error


def test_what_it_waits_for_is_said_whenever_that_changes(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    away = (404, {"detail": "Not Found"})
    orchestra.replies["GET", "/health"] = [away, _health(0), _health(0), _health(1)]
    assert main(["wait", "--url", orchestra.url, "--timeout", "60"]) == 0
    shown = capsys.readouterr().out.splitlines()
    no_lease = "rollout_server is not ready (no replica has weights and a lease)"
    no_router = f"router is not ready ({orchestra.url} has no /health)"
    assert [line.strip() for line in shown if "waiting" in line] == [
        f"waiting: {no_lease}; {no_router}",
        f"waiting: {no_lease}",
    ]


def _deployed(status: str, replicas: int = 1, **args: Any) -> dict[str, Any]:
    """An application that was deployed with these arguments."""
    application = _application(status)
    application["deployments"]["one"]["target_num_replicas"] = replicas
    return application | {"deployed_app_config": {"args": args}}


def _model(name: str, *trained_from: str) -> tuple[int, dict[str, Any]]:
    listed = {"root": name, "journal": True, "trained_from": list(trained_from)}
    return 200, {"data": [listed | {"id": "an-alias"}, listed | {"id": name}]}


@pytest.mark.parametrize(
    ("status", "leased", "models", "said"),
    [
        ("DEPLOYING", 1, _model("old", "models/old"), "rollout_server is deploying"),
        ("RUNNING", 2, _model("old", "models/old"), "they serve old, not new yet"),
        ("RUNNING", 2, (200, {"data": []}), "they serve no model, not new yet"),
        (
            "RUNNING",
            2,
            _model("new", "models/new", "models/old"),
            "they hold weights of models/old, not of models/new yet",
        ),
        ("RUNNING", 1, _model("new", "models/new"), "1 of 2 replicas have weights and a lease"),
        ("RUNNING", 2, _model("new", "models/new"), ""),
        ("RUNNING", 2, _model("new"), ""),
    ],
)
def test_services_of_the_deployment_before_are_not_what_it_waits_for(
    orchestra: Orchestra,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str,
    leased: int,
    models: tuple[int, dict[str, Any]],
    said: str,
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    orchestra.replies["GET", "/health"] = _health(leased)
    orchestra.replies["GET", "/v1/models"] = models
    _dashboard(
        orchestra,
        _port(orchestra),
        trainer=_deployed("RUNNING", model="models/new"),
        rollout_server=_deployed(status, 2, served_model_name="new", model="models/shape"),
    )
    assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == int(bool(said))
    assert said in capsys.readouterr().err


def test_an_answer_of_the_service_that_is_being_replaced_does_not_count(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    for name in ("trainer", "orchestrator", "router", "page"):
        _dashboard(orchestra, _port(orchestra), **{name: _application("DEPLOYING")})
        assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == 1
        assert f"{name} is deploying" in capsys.readouterr().err


def test_a_missing_key_is_not_waited_for(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/v1/runs"] = (401, {"error": {"message": "no key"}})
    for command in (["wait", "--timeout", "600"], ["run", str(run_file)]):
        assert main([*command, "--url", orchestra.url]) == 1
        error = capsys.readouterr().err
        assert error == (
            f"error: {orchestra.url} asks for an API key: "
            "set MILLRACE_API_KEY to one that it knows\n"
        )


def test_a_dashboard_that_is_too_busy_to_answer_is_waited_for(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    orchestra.replies["GET", "/api/serve/applications/"] = (503, "the controller is away")
    assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == 1
    assert "dashboard is not ready" in capsys.readouterr().err


def test_a_dashboard_that_asks_for_a_token_gets_that_of_ray(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", orchestra.url)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-ray")
    _dashboard(orchestra, _port(orchestra), trainer=_application("DEPLOYING"))
    path = "GET", "/api/serve/applications/"
    details = orchestra.replies[path]
    orchestra.replies[path] = [(401, "no token"), details]  # type: ignore[list-item]
    assert main(["wait", "--url", orchestra.url, "--timeout", "0"]) == 1
    assert "trainer is deploying" in capsys.readouterr().err


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
