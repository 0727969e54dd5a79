"""Which API a request speaks."""

from services.router.doors.door import Door
from services.router.doors.generate import GenerateDoor
from services.router.doors.messages import MessagesDoor
from services.router.doors.openai_answers import OpenAIDoor
from services.router.doors.responses import ResponsesDoor
from services.router.request.client_request import Endpoint
from services.router.trajectories.shared_sessions import SessionRecords


def door_of(endpoint: Endpoint, sessions: SessionRecords) -> Door:
    """The way in of one request."""
    if endpoint == "responses":
        return ResponsesDoor(sessions)
    if endpoint == "messages":
        return MessagesDoor()
    return GenerateDoor() if endpoint == "generate" else OpenAIDoor()
