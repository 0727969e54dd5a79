"""Sessions that a router offers, as an agent's runner takes and ends them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from millrace_tools.client.services_url import asks_for_key, nothing_answers, unknown_path
from services.protocol.errors import InvalidInput, NotReady

_ANSWER_S = 30.0
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_ENDED = ("session_not_found", "session_finished")  # what a router says; a proxy has other words


@dataclass(frozen=True)
class Work:
    """One episode to play.

    Attributes:
        session: its id, which is the API key of its calls.
        task: all that the agent is told.
        model: that answers.
        graders: names of those of which the program may choose one.
    """

    session: str
    task: dict[str, Any]
    model: str
    graders: Sequence[str] = ()

    @property
    def prompt(self) -> str:
        """The task in words: its last message of a user."""
        messages = self.task.get("messages") or ()
        said = [one["content"] for one in messages if one.get("role") == "user"]
        return str(said[-1]) if said else ""


class Offers:
    """The sessions of one router; used by several threads.

    Until something has answered, the URL may be wrong, or nothing may be deployed. From then on
    the router is only away for a while, as when it was killed and another one starts.
    """

    def __init__(self, http: httpx.Client, url: str, run: str | None) -> None:
        self._http, self._url, self._run = http, url, run
        self._has_answered = False

    def take(self, wait_s: float) -> Work | None:
        """The next session, None if there is none in time.

        Raises:
            InvalidInput: nothing answers, or something else than a router, and never did.
            NotReady: the router refuses, fails or is away.
        """
        asked = {"run": self._run, "wait_s": wait_s}
        with self._may_be_away():
            taken = self._post("/v1/sessions/take", asked, wait_s).json()
        if taken["session"] is None:
            return None
        graders = taken.get("graders", ())
        return Work(taken["session"]["id"], taken["task"], taken["model"], graders)

    def end(self, session: str, ending: dict[str, Any]) -> bool:
        """Tell how a session ended; False if it has ended without us.

        Raises:
            NotReady: the router refuses, fails or is away.
        """
        with self._may_be_away():
            try:
                self._post(f"/v1/sessions/{session}/finish", ending, 0.0)
            except _Gone:
                return False
            return True

    @contextmanager
    def _may_be_away(self) -> Iterator[None]:
        try:
            yield
        except InvalidInput:
            if not self._has_answered:
                raise
            raise NotReady(f"the router at {self._url} is away") from None
        except NotReady:
            self._has_answered = True
            raise
        self._has_answered = True

    def _post(self, path: str, body: dict[str, Any], wait_s: float) -> httpx.Response:
        try:
            answer = self._http.post(path, json=body, timeout=wait_s + _ANSWER_S)
        except httpx.ConnectError:
            raise nothing_answers(self._url) from None
        except httpx.HTTPError as error:
            raise NotReady(f"the router did not answer {path}: {error!r}") from None
        if answer.status_code == _UNAUTHORIZED:
            raise asks_for_key(self._url)
        if not answer.is_success and any(kind in answer.text for kind in _ENDED):
            raise _Gone
        if answer.status_code == _NOT_FOUND:
            raise unknown_path(self._url, path, "router")
        if answer.status_code != httpx.codes.OK:
            raise NotReady(f"the router answered {answer.status_code}: {answer.text[:300]}")
        return answer


class _Gone(Exception):
    """The session has ended, or is not known any more."""
