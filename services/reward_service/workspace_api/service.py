"""What the routes of a replica serve."""

from dataclasses import dataclass

from fastapi import Request

from services.access.access_control import KEY_NAME
from services.http.json_body import read_body
from services.reward_service.workspace_api.forwarding import Peers
from services.reward_service.workspace_api.grading import Grading
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces


@dataclass(frozen=True, kw_only=True)
class WorkspaceService:
    """What the routes of a replica serve.

    Attributes:
        config: of the replica.
        workspaces: of the replica.
        grading: of these.
        peers: the other replicas; None without any.
    """

    config: WorkspacesConfig
    workspaces: Workspaces
    grading: Grading
    peers: Peers | None = None

    def find(self, request: Request) -> Workspace:
        """The workspace of a path, if it is its caller's; see `Workspaces.find`."""
        return self.workspaces.find(request.path_params["workspace_id"], owner=owner_of(request))

    async def body(self, request: Request) -> bytes:
        """The body of a request.

        Raises:
            BodyRefused: it is too large or too slow.
        """
        return await read_body(
            request.receive,
            max_bytes=self.config.max_request_mb << 20,
            timeout_s=self.config.request_body_s,
        )


def owner_of(request: Request) -> str:
    """The name of the API key; empty without keys."""
    return str(request.scope.get(KEY_NAME, ""))
