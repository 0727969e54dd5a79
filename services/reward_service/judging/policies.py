"""How passed tests become a reward, and which tests need not be run. Pure functions."""

from collections.abc import Collection

from services.protocol.reward.code_tests import CodeTest, Policy


def reward(policy: Policy, tests: list[CodeTest], passed: Collection[int]) -> float:
    """The reward, from 0 to 1, for the tests that passed; one that was not run has failed."""
    if policy == "all":
        return float(len(passed) == len(tests))
    if policy == "fraction":
        return len(passed) / len(tests)
    whole = sum(test.weight for test in tests)
    if policy == "grouped":
        won = {number for number in passed if _group_passed(number, tests, passed)}
    else:
        won = set(passed)
    return sum(tests[number].weight for number in won) / whole if whole else 0.0


def still_matters(
    policy: Policy, number: int, tests: list[CodeTest], failed: Collection[int]
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


def _group_passed(number: int, tests: list[CodeTest], passed: Collection[int]) -> bool:
    group = tests[number].group
    if group is None:
        return True
    return all(other in passed for other, test in enumerate(tests) if test.group == group)
