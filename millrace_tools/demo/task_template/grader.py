"""Grades the answers to the tasks of tasks.jsonl. Replace the function's body with your own."""

from services.reward_service.graders.user_graders import grader


@grader("task_name")
def grade(completion: str, expected: str) -> float:
    """1 for the expected program, however it is spaced, else 0.

    Args:
        completion: the model's answer.
        expected: from the task's `arguments`; add others there, and here.
    """
    return float(completion.replace(" ", "") == expected.replace(" ", ""))
