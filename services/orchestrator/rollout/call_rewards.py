"""Rewards before an episode's end: of its calls, and of the tokens of a call."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from services.orchestrator.rollout.session_client import FinishedEpisode
from services.protocol.reward.reward_sum import reward_sum


def misfit(outcome: Mapping[str, Any], played: FinishedEpisode) -> str:
    """Why an outcome's rewards are not those of the calls that were made; empty if they are.

    Args:
        outcome: see `EpisodePlayer`.
        played: what its session recorded.
    """
    of_calls = outcome.get("of_calls", ())
    if len(of_calls) not in (0, played.calls):
        return f"it has rewards of {len(of_calls)} calls and made {played.calls}"
    given = {**dict(enumerate(of_calls, 1)), **outcome.get("tokens", {})}
    of_tokens = {call: len(one) for call, one in given.items() if isinstance(one, list)}
    for trajectory, turns in zip(played.trajectories, played.turns, strict=True):
        for (begin, _), (end, call) in pairwise([(0, 0), *turns]):
            # What several trajectories have in common has its mask in one of them.
            sampled = sum(trajectory.loss_mask[begin:end])
            if sampled and of_tokens.get(call, sampled) != sampled:
                some = of_tokens[call]
                return f"it has rewards of {some} tokens of call {call}, which has {sampled}"
    return ""


def returns(
    outcome: Mapping[str, Any], turns: Sequence[tuple[int, int]], *, by_token: bool
) -> tuple[tuple[int, float], ...]:
    """See `Score`; empty without rewards before the end.

    Args:
        outcome: see `EpisodePlayer`; it fits the calls.
        turns: of a trajectory, see `SessionTrajectory`.
        by_token: tokens keep rewards of their own, and are not summed up in their call's.
    """
    given = _earned(outcome, by_token=by_token)
    if not given:
        return ()
    total = float(outcome["reward"])
    found: list[tuple[int, float]] = []
    for end, call in turns:
        own = given.get(call, [0.0])
        past = reward_sum(one for at, some in given.items() if at <= call for one in some)
        # From the call's end backwards, so that equal rewards to come are equal numbers.
        values = list(accumulate(reversed(own), initial=total - past))[:0:-1]
        found += zip(range(end - len(own) + 1, end + 1), values, strict=True)
    return tuple(found)


def _earned(outcome: Mapping[str, Any], *, by_token: bool) -> dict[int, list[float]]:
    """By the number of the newest call then: rewards of its last tokens, one of each."""
    given = outcome.get("turns") or dict(enumerate(outcome.get("of_calls", ()), 1))
    found = {call: one if isinstance(one, list) else [one] for call, one in given.items()}
    for call, some in outcome.get("tokens", {}).items():
        found[call] = [*some[:-1], some[-1] + reward_sum(found.get(call, ()))]
    return found if by_token else {call: [reward_sum(some)] for call, some in found.items()}
