"""`/v1/responses/{id}`: read, cancel and delete stored responses."""

from typing import Any

from fastapi import APIRouter

from services.http.openapi import ERRORS
from services.router.errors import bad_request
from services.router.trajectories.shared_sessions import SessionRecords


def response_routes(sessions: SessionRecords) -> APIRouter:
    """The routes, over the responses that the sessions keep."""
    routes = APIRouter(prefix="/v1/responses", responses=ERRORS)

    @routes.get("/{name}")
    async def read(name: str) -> dict[str, Any]:
        """A response that was stored."""
        return await sessions.response(name)

    @routes.delete("/{name}")
    async def delete(name: str) -> dict[str, Any]:
        """Forget a response; those that go on from it stay as they are."""
        await sessions.delete_response(name)
        return {"id": name, "object": "response", "deleted": True}

    @routes.post("/{name}/cancel")
    async def cancel(name: str) -> dict[str, Any]:
        """Refused: nothing runs in the background; a client that hangs up cancels its answer."""
        await sessions.response(name)
        message = (
            "Cannot cancel a synchronous response. None are made in the background here; a client "
            "that hangs up cancels its answer."
        )
        raise bad_request(message, "background")

    return routes
