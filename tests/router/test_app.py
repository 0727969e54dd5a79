"""The Serve application, built as Serve builds it from YAML."""

import pytest
from pydantic import ValidationError
from ray import serve
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve._private.build_app import build_app

from services.router.app import build
from services.router.config import RouterConfig


def test_the_builder_takes_the_arguments_of_a_deployment_file():
    app = call_user_app_builder_with_args_if_necessary(build, {"max_retries": 2, "num_cpus": 0.25})
    assert isinstance(app, serve.Application)
    built = build_app(app, name="router")
    (deployment,) = built.deployments
    assert deployment.name == "router"
    assert deployment.ray_actor_options["num_cpus"] == 0.25
    assert deployment.max_ongoing_requests >= RouterConfig().max_open_requests


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValidationError, match="max_retry"):
        call_user_app_builder_with_args_if_necessary(build, {"max_retry": 2})
