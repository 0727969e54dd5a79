"""Agents that show a session's id in place of an API key: for its calls, and to end it."""

from http import HTTPStatus

from starlette.types import Scope

from services.access.access_control import GuestsUnknown
from services.protocol.session import SESSION_PREFIX
from services.router.errors import RequestFailed
from services.router.http.batches import BATCH_PATH
from services.router.http.forwarded import PATHS as FORWARDED
from services.router.http.forwarded import TOKENIZER_INFO
from services.router.request.client_request import PATHS
from services.router.trajectories.refused_rewards import count_refused
from services.router.trajectories.shared_sessions import SessionRecords

_ANY = frozenset((*PATHS.values(), BATCH_PATH, *FORWARDED, TOKENIZER_INFO, "/v1/models"))


class SessionKeys:
    """Whether a request may pass; see `services.access.access_control.AccessControl`.

    An id is made of 122 random bits, and known to the one that made the session, and to the agent.
    """

    def __init__(self, sessions: SessionRecords) -> None:
        self._sessions = sessions

    async def __call__(self, shown: str, scope: Scope) -> bool:
        """A session that is here may be played and ended, and nothing else.

        Raises:
            GuestsUnknown: the process with the sessions does not answer.
        """
        if not shown.startswith(SESSION_PREFIX):
            return False
        own, path = f"/v1/sessions/{shown}", scope["path"]
        if path not in (*_ANY, own, f"{own}/finish", f"{own}/rewards"):
            if path.startswith("/v1/sessions/") and path.endswith(("/finish", "/rewards")):
                count_refused("other_session")
            return False
        try:
            await self._sessions.get(shown, 0, 0)
        except RequestFailed as failure:
            if failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                # No client tries again what is refused for its key.
                raise GuestsUnknown(failure.response()) from None
            return False
        return True
