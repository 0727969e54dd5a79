"""Somebody else's agent: it asks the router one thing after another and notes what became of it."""

import threading
import time
from dataclasses import dataclass
from typing import Self

import httpx

from services.protocol.router import REPLICA_HEADER
from tests.operations.network import Machine

_CALL_S = 60.0
_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call; `began` and `ended` by the monotonic clock."""

    began: float
    ended: float
    replica: str
    problem: str


class Agent:
    """Asks from the network of a machine, in a thread; a context manager.

    Attributes:
        calls: those that have ended.
    """

    def __init__(self, machine: Machine, url: str, key: str, model: str) -> None:
        self.calls: list[Call] = []
        self._machine, self._url, self._model = machine, url, model
        self._headers = {"authorization": f"Bearer {key}"}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with self._machine.network(), httpx.Client(timeout=_CALL_S, trust_env=False) as http:
            while not self._over.wait(_PAUSE_S):
                self.calls.append(self._call(http))

    def _call(self, http: httpx.Client) -> Call:
        began, replica, problem = time.monotonic(), "", ""
        messages = [{"role": "user", "content": f"call {len(self.calls)}"}]
        body = {"model": self._model, "messages": messages, "max_tokens": 16}
        try:
            url = f"{self._url}/v1/chat/completions"
            answer = http.post(url, json=body, headers=self._headers)
            replica = answer.headers.get(REPLICA_HEADER, "")
            if answer.status_code != 200:
                problem = f"{answer.status_code}: {answer.text[:300]}"
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        return Call(began=began, ended=time.monotonic(), replica=replica, problem=problem)
