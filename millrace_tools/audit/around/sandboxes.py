"""Sandboxes for audited environments: the reward service's own, in this process."""

import asyncio

import httpx
from aiohttp import web

from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import RewardService
from services.reward_service.workspace_api.grading import Grading
from services.reward_service.workspace_api.http_api import http_api
from services.reward_service.workspace_api.service import WorkspaceService
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces
from services.workspaces.client import PATH

_CALL_S = 900.0
_PASSED = ("content-type", "retry-after")


class Sandboxes:
    """Answers what an environment asks of `/v1/sandboxes`; nothing starts before the first call.

    Args:
        config: of the deployment's application, or its defaults.
        reward: grades single files of workspaces.
    """

    def __init__(self, config: WorkspacesConfig, reward: RewardService) -> None:
        # Audits begin episodes faster than a model does, and one user has the machine.
        many = {"starts_per_s": 1000.0, "starts_at_once": 1000, "shared_user": True}
        self._config = config.model_copy(update=many)
        self._reward = reward
        self._workspaces: Workspaces | None = None
        self._http: httpx.AsyncClient | None = None
        self._starting = asyncio.Lock()
        self._problem = ""

    async def answer(self, request: web.Request) -> web.Response:
        """Pass a request on; 503 where this machine has no jail, which is never a reward."""
        http = await self._started()
        if http is None:
            error = {"message": self._problem, "type": "workspace_fault"}
            return web.json_response({"error": error}, status=503)
        answer = await http.request(
            request.method,
            request.path_qs,
            content=await request.read(),
            headers={"content-type": request.headers.get("content-type", "application/json")},
        )
        headers = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
        return web.Response(body=answer.content, status=answer.status_code, headers=headers)

    async def aclose(self) -> None:
        """End all workspaces."""
        if self._http is not None:
            await self._http.aclose()
        if self._workspaces is not None:
            await self._workspaces.aclose()

    async def _started(self) -> httpx.AsyncClient | None:
        async with self._starting:
            if self._workspaces is None:
                self._workspaces = workspaces = Workspaces(self._config)
                try:
                    await workspaces.start()
                except InvalidInput as problem:
                    self._problem = f"no sandbox can be had here: {problem}"
                    return None
                grading = Grading(workspaces, self._reward, self._config)
                service = WorkspaceService(
                    config=self._config, workspaces=workspaces, grading=grading
                )
                transport = httpx.ASGITransport(http_api(service), root_path=PATH)
                self._http = httpx.AsyncClient(
                    transport=transport,
                    base_url="http://sandboxes",
                    timeout=_CALL_S,
                    trust_env=False,
                )
            return self._http
