"""Why a call of a workspace has no result. None of these is ever a reward."""

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import EndReason


class WorkspaceGone(RuntimeError):
    """The workspace was open and is no more.

    Attributes:
        reason: by what it ended; `lost` is nothing that its owner did.
    """

    def __init__(self, workspace_id: str, reason: EndReason) -> None:
        self.workspace_id, self.reason = workspace_id, reason
        super().__init__(f"workspace {workspace_id} is gone: {reason}")


class UnknownWorkspace(LookupError):
    """This caller has no such workspace, whether or not another one has."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(f"there is no workspace {workspace_id}")


class UnknownSnapshot(LookupError):
    """This caller has no such snapshot, or no more."""

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(f"there is no snapshot {snapshot_id}")


class QuotaFull(RuntimeError):
    """As much as may be is open, starting or waiting.

    Attributes:
        retry_after_s: seconds until it may be tried again.
    """

    def __init__(self, reason: str, *, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(reason)


class NoSuchFile(InvalidInput):
    """The workspace has no file of this path."""


class WorkspaceFault(RuntimeError):
    """Nothing that the caller did: no jail could be had, or no process in one."""


class JailLost(RuntimeError):
    """The jail died, or did not answer in time; its workspace is gone."""
