"""Which function grades which kind of grader.

A new kind is a model in `services.protocol.reward.grader` and a function here under `@grades`. What
users add themselves needs neither: see `services.reward_service.graders.user_graders`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from services.reward_service.grading.grade import Grade
from services.reward_service.grading.tools import Tools

GradeFunction = Callable[[str, Any, Tools], Awaitable[Grade]]

_FUNCTIONS: dict[type, GradeFunction] = {}


def grades(*kinds: type) -> Callable[[GradeFunction], GradeFunction]:
    """Register a function for these models of graders."""

    def register(function: GradeFunction) -> GradeFunction:
        for kind in kinds:
            assert kind not in _FUNCTIONS, f"{kind.__name__} has two functions"
            _FUNCTIONS[kind] = function
        return function

    return register


def registered() -> list[type]:
    """The models that can be graded."""
    return list(_FUNCTIONS)


async def grade_completion(completion: str, grader: Any, tools: Tools) -> Grade:
    """Grade one answer by whatever kind of grader."""
    return await _FUNCTIONS[type(grader)](completion, grader, tools)
