"""Which workspaces of a replica are open, and what became of those that were."""

from collections import OrderedDict

from services.protocol.reward.workspaces import EndReason
from services.reward_service.workspaces.errors import UnknownWorkspace, WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace

_MAX_ENDED = 10_000
"""Ends that are remembered; a workspace that ended before these is as unknown as none."""


class Registry:
    """Finds workspaces for their owners alone."""

    def __init__(self) -> None:
        self._open: dict[str, Workspace] = {}
        self._ended: OrderedDict[str, tuple[str, EndReason]] = OrderedDict()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, workspace: Workspace) -> None:
        """Know a workspace until it has ended, and then by its reason."""
        self._open[workspace.id] = workspace
        workspace.when_ended(self._forget)

    def find(self, workspace_id: str, owner: str) -> Workspace:
        """An open workspace of an owner.

        Raises:
            UnknownWorkspace: the owner has and had none of this name.
            WorkspaceGone: it ended.
        """
        found = self._open.get(workspace_id)
        if found is not None and found.owner == owner:
            if found.reason is not None:
                raise WorkspaceGone(workspace_id, found.reason)
            return found
        ended = self._ended.get(workspace_id)
        if ended is not None and ended[0] == owner:
            raise WorkspaceGone(workspace_id, ended[1])
        raise UnknownWorkspace(workspace_id)

    def of(self, owner: str) -> list[Workspace]:
        """The open workspaces of an owner, oldest first."""
        return [one for one in self._open.values() if one.owner == owner and one.reason is None]

    def all(self) -> list[Workspace]:
        """The open workspaces of all owners."""
        return list(self._open.values())

    def _forget(self, workspace: Workspace) -> None:
        assert workspace.reason is not None
        del self._open[workspace.id]
        self._ended[workspace.id] = workspace.owner, workspace.reason
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
