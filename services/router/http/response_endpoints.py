"""`/v1/responses/{id}`: read, cancel and delete stored responses."""

from typing import Any

from fastapi import APIRouter

from services.http.openapi import ERRORS
from services.router.errors import bad_request
from services.router.http.background import BackgroundResponses
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.trajectories.stored_responses import CANCELLED, UNFINISHED


def response_routes(sessions: SessionRecords, background: BackgroundResponses) -> APIRouter:
    """The routes, over the responses that the sessions keep.

    Args:
        sessions: see above.
        background: the responses that this router makes in the background.
    """
    routes = APIRouter(prefix="/v1/responses", responses=ERRORS)

    @routes.get("/{name}")
    async def read(name: str) -> dict[str, Any]:
        """A response that was stored."""
        return await sessions.response(name)

    @routes.delete("/{name}")
    async def delete(name: str) -> dict[str, Any]:
        """Forget a response; those that go on from it stay as they are."""
        await sessions.delete_response(name)
        await background.cancel(name)
        return {"id": name, "object": "response", "deleted": True}

    @routes.post("/{name}/cancel")
    async def cancel(name: str) -> dict[str, Any]:
        """Cancel a response that is made in the background."""
        response = await sessions.response(name)
        if not response.get("background"):
            message = (
                "Cannot cancel a synchronous response. Only one with background: true goes on "
                "without its client; any other is cancelled by hanging up."
            )
            raise bad_request(message, "response_id")
        if response["status"] in UNFINISHED:
            await background.cancel(name)
            await sessions.keep_response({**response, "status": CANCELLED}, [], None)
            response = await sessions.response(name)
        if response["status"] != CANCELLED:
            raise bad_request(f"The response has ended: it is {response['status']}.", "response_id")
        return response

    return routes
