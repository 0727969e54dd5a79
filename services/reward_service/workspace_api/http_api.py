"""The HTTP face of workspaces, below `/v1/sandboxes`."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.routing import Route

from services.http.json_body import AsciiJson, parsed_body, strict_json
from services.http.openapi import ERRORS, component, describe_bodies, json_body
from services.observability.log import Log
from services.protocol.errors import NotReady
from services.protocol.reward.workspace_tests import GradeWorkspace
from services.protocol.reward.workspaces import (
    ExecCall,
    ForkCall,
    OpenWorkspace,
    PythonCall,
    SnapshotInfo,
    WorkspaceState,
)
from services.reward_service.workspace_api.call_routes import add_calls, unless_left
from services.reward_service.workspace_api.error_answers import add_error_answers
from services.reward_service.workspace_api.file_routes import add_files
from services.reward_service.workspace_api.forwarding import Peers
from services.reward_service.workspace_api.peer_listener import FROM_PEER
from services.reward_service.workspace_api.service import WorkspaceService, owner_of
from services.reward_service.workspaces.errors import QuotaFull
from services.reward_service.workspaces.workspace import Workspace

_OPEN_S, _LIST_S = 600.0, 10.0
_LOG = Log("sandboxes")


def http_api(
    service: WorkspaceService,
    *,
    routes: list[Route] | None = None,
    life: AbstractAsyncContextManager[None] | None = None,
) -> FastAPI:
    """The routes; errors are those of `error_answers`.

    Args:
        service: what they serve.
        routes: more of them, before all others.
        life: open while the application runs.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with life or nullcontext():
            yield

    app = FastAPI(
        title="Millrace sandboxes",
        lifespan=lifespan,
        default_response_class=AsciiJson,
        responses=ERRORS,
        redirect_slashes=False,
    )
    app.router.routes.extend(routes or [])
    describe_bodies(app, OpenWorkspace, ExecCall, PythonCall, ForkCall, GradeWorkspace)
    add_error_answers(app)
    _add_collection(app, service)
    _add_snapshots(app, service)
    add_calls(app, service)
    add_files(app, service)
    _add_grading(app, service)
    return app


def state_of(workspace: Workspace) -> dict[str, Any]:
    """What a client sees of a workspace."""
    return WorkspaceState(
        id=workspace.id,
        opened_at=workspace.opened_at,
        calls=workspace.calls,
        idle_left_s=round(workspace.idle_left_s, 3),
        total_left_s=round(workspace.total_left_s, 3),
        disk_used=workspace.disk_used,
        memory_used=workspace.memory_used,
        tier=workspace.tier,
        spec=workspace.spec.model_dump(exclude={"files", "snapshot"}),
    ).model_dump()


def _add_collection(app: FastAPI, service: WorkspaceService) -> None:
    opened = json_body(component(OpenWorkspace))

    @app.post("/", status_code=201, include_in_schema=False)
    @app.post("", status_code=201, response_model=WorkspaceState, openapi_extra=opened)
    async def open_workspace(request: Request) -> Response:
        """Open a workspace; 429 with `retry-after` where as many as may be are open."""
        body = await service.body(request)
        data = parsed_body(body) if body.strip() else {}
        spec = OpenWorkspace.from_data(data, source="open")
        return await unless_left(request, _opened(service, request, spec))

    @app.get("/", include_in_schema=False)
    @app.get("", response_model=list[WorkspaceState])
    async def list_workspaces(request: Request) -> Response:
        """The caller's open workspaces, of all replicas that answer."""
        owner = owner_of(request)
        found = [state_of(one) for one in service.workspaces.of(owner)]
        if service.peers is not None and FROM_PEER not in request.scope:
            asked = (_listed(service.peers, one, owner) for one in await service.peers.others())
            found += [state for states in await asyncio.gather(*asked) for state in states]
        return AsciiJson(sorted(found, key=lambda state: state["opened_at"]))

    @app.get("/{workspace_id}", response_model=WorkspaceState)
    async def workspace_state(request: Request, workspace_id: str) -> Response:
        """What is known of a workspace."""
        return AsciiJson(state_of(service.find(request)))

    @app.delete("/{workspace_id}")
    async def close_workspace(request: Request, workspace_id: str) -> Response:
        """End everything of a workspace."""
        await service.find(request).close("closed")
        return AsciiJson({"id": workspace_id, "reason": "closed"})


async def _opened(service: WorkspaceService, request: Request, spec: OpenWorkspace) -> Response:
    """A workspace here, or where its snapshot is, or else where there is a place for it."""
    owner, peers = owner_of(request), service.peers
    if peers is not None and spec.snapshot is not None and peers.is_elsewhere(spec.snapshot):
        address = await peers.address_of(spec.snapshot)
        return await _opened_at(peers, address, owner, spec)
    try:
        return AsciiJson(state_of(await service.workspaces.open(spec, owner=owner)), 201)
    except QuotaFull:
        if peers is None or spec.snapshot is not None or FROM_PEER in request.scope:
            raise
        others = await peers.others()
        for address in random.sample(others, len(others)):
            try:
                answer = await _opened_at(peers, address, owner, spec)
            except NotReady as problem:
                _LOG.warning("workspace_not_opened_elsewhere", problem=str(problem))
                continue
            if answer.status_code == 201:
                return answer
        raise


async def _opened_at(peers: Peers, address: Any, owner: str, spec: OpenWorkspace) -> Response:
    sent = spec.model_dump(mode="json")
    status, body = await peers.call(address, "POST", owner=owner, timeout_s=_OPEN_S, body=sent)
    return Response(body, status, media_type="application/json")


async def _listed(peers: Peers, address: Any, owner: str) -> list[dict[str, Any]]:
    try:
        status, body = await peers.call(address, "GET", owner=owner, timeout_s=_LIST_S, body=None)
        found: list[dict[str, Any]] = strict_json(body.decode()) if status == 200 else []
        return found
    except NotReady as problem:
        _LOG.warning("workspaces_not_listed", problem=str(problem))
        return []


def _add_snapshots(app: FastAPI, service: WorkspaceService) -> None:
    forked = json_body(component(ForkCall))

    @app.post("/{workspace_id}/snapshot", status_code=201, response_model=SnapshotInfo)
    async def take_snapshot(request: Request, workspace_id: str) -> Response:
        """Keep the files of a workspace, and the cells that made its variables."""
        made = await service.workspaces.snapshot(service.find(request))
        info = SnapshotInfo(snapshot=made.id, bytes=made.bytes, cells=len(made.cells))
        return AsciiJson(info.model_dump(), 201)

    @app.post(
        "/{workspace_id}/fork",
        status_code=201,
        response_model=list[WorkspaceState],
        openapi_extra=forked,
    )
    async def fork_workspace(request: Request, workspace_id: str) -> Response:
        """Open `n` workspaces that begin as this one is now; all or none."""
        body = await service.body(request)
        call = ForkCall.from_data(parsed_body(body) if body.strip() else {}, source="fork")
        workspace = service.find(request)
        return await unless_left(request, _forked(service, workspace, call.n))

    @app.delete("/snapshots/{snapshot_id}")
    async def drop_snapshot(request: Request, snapshot_id: str) -> Response:
        """Forget a snapshot."""
        service.workspaces.drop_snapshot(snapshot_id, owner=owner_of(request))
        return AsciiJson({"snapshot": snapshot_id})


async def _forked(service: WorkspaceService, workspace: Workspace, n: int) -> Response:
    forks = await service.workspaces.fork(workspace, n)
    return AsciiJson([state_of(one) for one in forks], 201)


def _add_grading(app: FastAPI, service: WorkspaceService) -> None:
    graded = json_body(component(GradeWorkspace), required=True)

    @app.post("/{workspace_id}/grade", openapi_extra=graded)
    async def grade_workspace(request: Request, workspace_id: str) -> Response:
        """Grade what a workspace holds now; an `infra_error` has no reward."""
        data = parsed_body(await service.body(request))
        how = GradeWorkspace.from_data(data, source="grade")
        return await unless_left(request, _graded(service, service.find(request), how))


async def _graded(service: WorkspaceService, workspace: Workspace, how: GradeWorkspace) -> Response:
    score = await service.grading.grade(workspace, how)
    if how.close and score.reward is not None:
        await workspace.close("closed")
    return AsciiJson(dataclasses.asdict(score))
