"""`/v1/models`, `/v1/load` and `/health`: what the router can do now; `/` leads to the page."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse

from services.protocol.router import RouterLoad
from services.protocol.weights.weight_bus import Member
from services.router.upstream.replicas import Replicas


def status_routes(replicas: Replicas, external: Replicas) -> APIRouter:
    """The routes, over the replicas of the cluster and those outside of it."""
    routes = APIRouter()
    inside, outside = replicas.reservations.membership, external.reservations.membership

    @routes.get("/", include_in_schema=False)
    async def page() -> RedirectResponse:
        """To the page, which is an application of its own."""
        return RedirectResponse("page/")

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Models that can be used now, in OpenAI's shape."""
        # By name, and where a name is both, requests go outside.
        listed = _models(inside.leased(None).values(), journal=True)
        listed |= _models(outside.leased(None).values(), journal=False)
        return {"object": "list", "data": [listed[name] for name in sorted(listed)]}

    @routes.get("/v1/load")
    async def load() -> RouterLoad:
        """How full the replicas of the cluster are."""
        return replicas.reservations.load

    @routes.get("/health")
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


def _models(members: Iterable[Member], *, journal: bool) -> dict[str, dict[str, Any]]:
    """The models of these members by name."""
    listed: dict[str, dict[str, Any]] = {}
    origins: defaultdict[str, set[str]] = defaultdict(set)
    for member in members:
        listed[member.model] = _model(member, journal=journal)
        if member.trained_from:
            origins[member.model].add(member.trained_from)
    # Several while a policy that began from another model is on its way to the replicas.
    return {name: one | {"trained_from": sorted(origins[name])} for name, one in listed.items()}


def _model(member: Member, *, journal: bool) -> dict[str, Any]:
    return {
        "id": member.model,
        "object": "model",
        "created": 0,
        "owned_by": "millrace" if journal else "external",
        "max_model_len": member.max_model_len or None,
        "journal": journal,
    }
