"""The Serve application, built as Serve builds it from YAML."""

import pytest
from pydantic import ValidationError
from ray import serve
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve._private.build_app import build_app

from services.router.app import build
from services.router.config import RouterConfig
from services.router.trajectories.kept_sessions import _LOCKED_S


def test_the_builder_takes_the_arguments_of_a_deployment_file():
    app = call_user_app_builder_with_args_if_necessary(build, {"max_retries": 2, "num_cpus": 0.25})
    assert isinstance(app, serve.Application)
    built = build_app(app, name="router")
    (deployment,) = built.deployments
    assert deployment.name == "router"
    assert deployment.ray_actor_options["num_cpus"] == 0.25
    assert deployment.max_ongoing_requests >= RouterConfig().max_open_requests


@pytest.mark.parametrize("replicas", [1, 3])
def test_several_routers_get_the_calls_of_one_session_each(replicas):
    app = call_user_app_builder_with_args_if_necessary(build, {"replicas": replicas})
    deployments = build_app(app, name="router").deployments
    (deployment,) = (one for one in deployments if one.name == "router")
    assert deployment.num_replicas == replicas
    routing = deployment._deployment_config.request_router_config
    by_session = routing.get_request_router_class().__name__ == "ConsistentHashRouter"
    assert by_session == (replicas > 1)


def test_a_router_with_a_port_of_its_own_is_up_before_the_old_one_goes():
    for listen, surge in ((None, 0), ({"port": 0}, 100)):
        app = call_user_app_builder_with_args_if_necessary(build, {"listen": listen})
        (deployment,) = build_app(app, name="router").deployments
        assert deployment._deployment_config.max_surge_percent == surge


@pytest.mark.parametrize(
    ("settings", "alone"),
    [({}, True), ({"replicas": 2}, False), ({"sessions_dir": "/data/sessions"}, False)],
    ids=["one router", "two", "one with a folder"],
)
def test_records_that_outlive_a_router_are_in_a_process_of_their_own(settings, alone):
    """Only one process at a time can have the folder, and a new router starts beside the old."""
    built = {"listen": {"port": 0}, **settings}
    app = call_user_app_builder_with_args_if_necessary(build, built)
    deployments = {one.name: one for one in build_app(app, name="router").deployments}
    assert set(deployments) == ({"router"} if alone else {"router", "sessions"})
    if not alone:
        sessions = deployments["sessions"]._deployment_config
        assert sessions.max_surge_percent == 0
        assert sessions.graceful_shutdown_timeout_s < _LOCKED_S


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValidationError, match="max_retry"):
        call_user_app_builder_with_args_if_necessary(build, {"max_retry": 2})
