"""From the tests that passed to a reward. Pure functions."""

from collections.abc import Collection, Sequence
from typing import Protocol

from services.protocol.reward.code_tests import Policy
from services.protocol.reward.reward_sum import reward_sum


class Weighted(Protocol):
    """A test as policies see it."""

    @property
    def weight(self) -> float:
        """Its part in the policies `weighted` and `grouped`."""

    @property
    def group(self) -> str | None:
        """Its subtask; None for one of its own."""


def policy_reward(policy: Policy, tests: Sequence[Weighted], passed: Collection[int]) -> float:
    """The reward, from 0 to 1, for the tests that passed; one that was not run has failed."""
    if policy == "all":
        return float(len(passed) == len(tests))
    if policy == "fraction":
        return len(passed) / len(tests)
    whole = reward_sum(test.weight for test in tests)
    if policy == "grouped":
        won = {number for number in passed if _group_passed(number, tests, passed)}
    else:
        won = set(passed)
    return reward_sum(tests[number].weight for number in won) / whole if whole else 0.0


def still_matters(
    policy: Policy, number: int, tests: Sequence[Weighted], failed: Collection[int]
) -> bool:
    """Whether running a test can still change the reward.

    Leaving out one that cannot is no gift: it counts as failed.
    """
    if policy == "all":
        return not failed
    if policy == "grouped":
        group = tests[number].group
        return group is None or all(tests[other].group != group for other in failed)
    return True


def _group_passed(number: int, tests: Sequence[Weighted], passed: Collection[int]) -> bool:
    group = tests[number].group
    if group is None:
        return True
    return all(other in passed for other, test in enumerate(tests) if test.group == group)
