"""A user id that no other workspace of this machine has."""

import contextlib
import socket

from services.reward_service.isolation.jail import own_user_id
from services.reward_service.workspaces.errors import WorkspaceFault

_TRIES = 1000


class OwnUser:
    """Chosen at random and held by a name in the abstract socket namespace, which the kernel frees
    when this process ends.

    Raises:
        WorkspaceFault: all that were tried are taken.
    """

    def __init__(self) -> None:
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for _ in range(_TRIES):
            self.id = own_user_id()
            with contextlib.suppress(OSError):
                self._lock.bind(f"\0millrace-user-{self.id}")
                return
        self._lock.close()
        raise WorkspaceFault("no user id is free")

    def release(self) -> None:
        """Let others have it."""
        self._lock.close()
