"""Every service with an HTTP interface refuses to serve it to others without keys."""

from types import ModuleType
from typing import Any

import httpx
import pytest

from services.access.config import AccessConfig
from services.orchestrator import app as orchestrator
from services.orchestrator.config import OrchestratorConfig
from services.page import app as page
from services.page.config import PageConfig
from services.protocol.errors import InvalidInput
from services.reward_service import app as reward_service
from services.reward_service.config import RewardServiceConfig
from services.reward_service.http_api import closed_api
from services.reward_service.workspace_api import app as sandboxes
from services.reward_service.workspaces.config import WorkspacesConfig
from services.router import app as router
from services.router.config import RouterConfig

OPEN = AccessConfig()
SERVICES: list[tuple[ModuleType, str, Any]] = [
    (router, "Router", RouterConfig(access=OPEN)),
    (orchestrator, "Orchestrator", OrchestratorConfig(access=OPEN)),
    (page, "Page", PageConfig(access=OPEN)),
    (sandboxes, "WorkspaceReplica", WorkspacesConfig(access=OPEN)),
    (reward_service, "RewardReplica", RewardServiceConfig(access=OPEN, slots=1)),
]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
@pytest.mark.parametrize(("module", "name", "config"), SERVICES, ids=lambda value: str(value)[:12])
def test_a_service_that_others_reach_does_not_start_without_keys(
    module: ModuleType, name: str, config: Any, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "http_host", lambda: host)
    with pytest.raises(InvalidInput, match="api_keys_file"):
        getattr(module, name)(config)


async def test_a_reward_service_that_is_not_told_who_may_use_it_serves_nobody() -> None:
    assert RewardServiceConfig().access is None
    transport = httpx.ASGITransport(closed_api())
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        for method, path in (("GET", "/health"), ("POST", "/v1/grade"), ("GET", "/openapi.json")):
            assert (await http.request(method, path)).status_code == 403
