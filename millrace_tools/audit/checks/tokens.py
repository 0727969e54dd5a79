"""Tokens of episodes that a model has played: what would be trained, and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.policy.forwarded_policy import Exchange

_CUT = 0.1
"""Share of answers cut at their longest from which on it is told."""
HISTORY = "tokens.history"
_QUESTIONS = {
    HISTORY: "Does each turn go on from the tokens of the turn before?",
    "tokens.length": "Do prompts and answers fit?",
    "tokens.cost": "How many tokens does an episode take?",
}
TOKENS = tuple(_QUESTIONS)


@dataclass(frozen=True)
class Turns:
    """The answered calls of one episode, by token ids.

    Attributes:
        later: calls whose messages go on from an earlier call and its answer.
        rewritten: those of them whose tokens do not.
        first: number of the first of these in the episode, from 1; 0 if there is none.
        thoughts: those of them before which the model thought.
        prompt: tokens of all prompts.
        fresh: tokens of prompts that no earlier call of the episode had.
        sampled: tokens of all answers.
        longest: tokens of the longest prompt and its answer.
        cut: answers that ended at their longest.
        calls: answered calls.
    """

    later: int
    rewritten: int
    first: int
    thoughts: int
    prompt: int
    fresh: int
    sampled: int
    longest: int
    cut: int
    calls: int

    @classmethod
    def of(cls, exchanges: Sequence[Exchange]) -> "Turns":
        """The turns of an episode; `exchanges` have token ids."""
        later = rewritten = first = thoughts = fresh = 0
        for number, one in enumerate(exchanges):
            before = [other for other in exchanges[:number] if one.goes_on_from(other)]
            going_on = [other for other in before if one.prompt_ids[: other.end] == other.ids]
            later += bool(before)
            if before and not going_on:
                rewritten += 1
                first = first or number + 1
                thoughts += any(other.thinks for other in before)
            fresh += len(one.prompt_ids) - max((other.end for other in going_on), default=0)
        return cls(
            later=later,
            rewritten=rewritten,
            first=first,
            thoughts=thoughts,
            prompt=sum(len(one.prompt_ids) for one in exchanges),
            fresh=fresh,
            sampled=sum(one.end - len(one.prompt_ids) for one in exchanges),
            longest=max((one.end for one in exchanges), default=0),
            cut=sum(one.finish_reason == "length" for one in exchanges),
            calls=len(exchanges),
        )


def token_findings(
    episodes: Mapping[str, Sequence[Exchange]], max_model_len: int | None
) -> list[Finding]:
    """All checks of the tokens of a model's episodes."""
    with_ids = {name: [one for one in exchanges if one.ids] for name, exchanges in episodes.items()}
    played = [Turns.of(exchanges) for exchanges in with_ids.values() if exchanges]
    if not played:
        said = "the server returns no token ids; vLLM and Millrace do"
        return [_finding(HISTORY, Verdict.NOT_MEASURED, said)]
    return [_history(played), _length(played, max_model_len), _cost(played)]


def _history(played: Sequence[Turns]) -> Finding:
    later, rewritten = sum(one.later for one in played), sum(one.rewritten for one in played)
    if not later:
        return _finding(HISTORY, Verdict.PASS, "no call goes on from another one")
    said = f"{later - rewritten} of {later} later turns do"
    if not rewritten:
        return _finding(HISTORY, Verdict.PASS, said)
    first = min(one.first for one in played if one.first)
    thoughts = sum(one.thoughts for one in played)
    said += (
        f"; {rewritten}, the first at call {first}, begin a trajectory of their own: the chat "
        "template or the environment writes an earlier answer otherwise than it was sampled, "
        f"{thoughts} times one with thoughts; session_prompts: recorded of a router avoids that"
    )
    return _finding(HISTORY, Verdict.WARN, said)


def _length(played: Sequence[Turns], max_model_len: int | None) -> Finding:
    calls, cut = sum(one.calls for one in played), sum(one.cut for one in played)
    longest = max(one.longest for one in played)
    bound = "" if max_model_len is None else f" of {max_model_len}"
    said = f"the longest call has {longest}{bound} tokens; {cut} of {calls} answers are cut"
    verdict = Verdict.WARN if cut > _CUT * calls else Verdict.PASS
    return _finding("tokens.length", verdict, said)


def _cost(played: Sequence[Turns]) -> Finding:
    prompt = fmean(one.prompt for one in played)
    fresh = fmean(one.fresh for one in played)
    sampled = fmean(one.sampled for one in played)
    rows = fmean(one.calls - one.later + one.rewritten for one in played)
    said = (
        f"{sampled:.0f} sampled, which are trained, in {rows:.2g} trajectories; {prompt:.0f} of "
        f"prompts, of which {fresh:.0f} are not in the cache of the turn before"
    )
    return _finding("tokens.cost", Verdict.PASS, said)


def _finding(check: str, verdict: Verdict, evidence: str) -> Finding:
    question = _QUESTIONS[check]
    return Finding(check=check, question=question, verdict=verdict, evidence=evidence)
