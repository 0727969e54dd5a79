"""A server that somebody else has, whose answers a test writes."""

from collections.abc import Callable
from typing import Any

from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy


class Scripted(ScriptedPolicy):
    """Answers every call; `conversations` are those it was asked in."""

    def __init__(self, answer: Callable[[list[dict[str, Any]]], str]) -> None:
        super().__init__()
        self._answer_to = answer
        self.conversations: list[list[dict[str, Any]]] = []

    def say(self, episode: str, messages: list[dict[str, Any]]) -> str:
        self.conversations.append(messages)
        return self._answer_to(messages)
