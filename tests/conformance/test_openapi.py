"""What /openapi.json says is true, for requests that nobody would write by hand."""

import asyncio
import contextlib

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from services.router.http.batches import BATCH_PATH
from services.router.request.client_request import PATHS
from tests.conformance.conftest import before, until_idle
from tests.router.vllm_process import MODEL

ANSWERING = dict.fromkeys((*PATHS.values(), BATCH_PATH, "/invocations"), "max_tokens")
ANSWERING[PATHS["responses"]] = "max_output_tokens"
"""Paths that generate, and the field that bounds their answers."""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
UNSERVED = "version_not_served", "overloaded_error"
"""What a version asked for in a header ends with when no replica ever has it, and how Anthropic's
API names that."""

_SETTINGS = settings(
    max_examples=12,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
async def router(vllm):
    cluster = await before(vllm.plain, lease_wait_s=0.05, session_poll_max_s=0.05)
    yield cluster
    await until_idle(cluster)
    await cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
async def test_every_endpoint_answers_as_it_says(router, mode):
    described = httpx.Response.json(await router.http.get(f"{router.url}/openapi.json"))
    paths = schemathesis.openapi.from_dict(described)
    operations = [one.ok() for one in paths.get_all_operations()]
    assert {one.path for one in operations} >= {*ANSWERING, "/v1/sessions", "/v1/models"}
    with requests.Session() as session:
        for operation in operations:
            await asyncio.to_thread(_attack, operation, mode, router.url, session)


def _attack(operation, mode, url, session):
    bound = ANSWERING.get(operation.path, "")

    def attack(case):
        if operation.path in ANSWERING and isinstance(case.body, dict):
            # Short answers, and for what is well formed a model that there is.
            sampling = case.body.get("sampling_params")
            (sampling if isinstance(sampling, dict) else case.body)[bound] = 2
            if mode is GenerationMode.POSITIVE:
                case.body["model"] = MODEL
        answer = case.call(base_url=url, session=session, timeout=300)
        if answer.status_code >= 500:
            assert answer.json()["error"]["type"] in UNSERVED, (case.as_curl_command(), answer.text)
        case.validate_response(answer, checks=CHECKS)

    # What takes nothing cannot be given anything wrong.
    with contextlib.suppress(Unsatisfiable):
        _SETTINGS(given(case=operation.as_strategy(generation_mode=mode))(attack))()
