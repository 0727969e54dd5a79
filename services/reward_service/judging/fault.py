"""Failures of tests and checkers: of the task, or on one answer. None of them is the sandbox's."""

from services.reward_service.judging.judge import Judgement


class TaskFault(RuntimeError):
    """The tests or the checker fail whatever the answer is: nobody can be graded by them."""


class CheckerFailed(RuntimeError):
    """A user's checker gave no verdict on an output that it would not have failed on by itself.

    Attributes:
        judgement: the failure of the test, which is the answer's.
        at_limit: the checker was stopped at a limit.
    """

    def __init__(self, judgement: Judgement, *, at_limit: bool) -> None:
        self.judgement, self.at_limit = judgement, at_limit
        super().__init__(judgement.detail)
