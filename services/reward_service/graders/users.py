"""Graders that users registered: Python functions and HTTP endpoints.

One that fails on an answer was made to fail by it, unless it fails on another answer, too.
"""

import asyncio
import json

import aiohttp

from services.http.reply import read_reply
from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.grader import HttpGrader, PythonGrader
from services.protocol.reward.reward_service import Score, Verdict
from services.protocol.reward.reward_sum import reward_sum
from services.reward_service.graders.user_graders import NoVerdict, finite, number_or_names
from services.reward_service.grading.helper_process import CallFailed, HelperTimeout
from services.reward_service.grading.tools import Tools

_log = Log("reward_service")

_CALL = "services.reward_service.graders.user_graders:call_named"
_MAX_REPLY_BYTES = 1 << 20
_TIMED_OUT, _RAISED = "time_limit", "raised"


class _Failed(Exception):
    """A user's grader gave no reward to an answer.

    Attributes:
        reason: why, in a word for metrics.
    """

    def __init__(self, message: str, *, reason: str = _RAISED) -> None:
        self.reason = reason
        super().__init__(message)


class _Unusable(Exception):
    """A user's grader can give no reward, whatever the answer is."""


async def grade_python(completion: str, grader: PythonGrader, tools: Tools) -> Score:
    """Ask a registered function. It fails on the answer alone, or on the reference as well."""
    try:
        return _rewarded(await _called(completion, grader, tools))
    except _Unusable as problem:
        return _at_fault(grader, problem)
    except _Failed as problem:
        failure = problem
    if grader.reference is not None:
        try:
            await _called(grader.reference, grader, tools)
        except (_Failed, _Unusable) as problem:
            return _at_fault(grader, f"on the reference answer, too: {problem}")
    return _refused(grader, failure)


_Reward = float | dict[str, float]


async def _called(completion: str, grader: PythonGrader, tools: Tools) -> _Reward:
    """The reward of a completion, or several by name.

    Raises:
        _Failed: the function raised, died, took too long or returned no finite number.
        _Unusable: there is no such function, or it says itself that it cannot tell.
        HelperFailed: it could not be called.
    """
    arguments = {
        "name": grader.name,
        "place": tools.config.graders.get(grader.name),
        "completion": completion,
        "arguments": grader.arguments,
    }
    try:
        return number_or_names(
            await tools.call_helper(_CALL, arguments, timeout_s=grader.timeout_s, of_user=True)
        )
    except HelperTimeout as late:
        raise _Failed(str(late), reason=_TIMED_OUT) from None
    except CallFailed as problem:
        if problem.kind == NoVerdict.__name__:
            raise _Unusable(str(problem)) from None
        raise _Failed(str(problem)) from None


async def grade_http(completion: str, grader: HttpGrader, tools: Tools) -> Score:
    """Ask a registered endpoint: it gets `completion` and `arguments`, and answers `reward`, or
    `rewards` by name.

    One that fails is asked about the reference and then about the answer again, so that a failure
    of the endpoint is not taken for the answer's.
    """
    url = tools.config.http_graders.get(grader.name)
    if url is None:
        return Score.ungraded(f"no HTTP grader is named {grader.name!r}")
    session = await tools.http()
    try:
        return _rewarded(await _posted(url, completion, grader, session))
    except _Failed:
        RewardMetrics.retries.inc()
    works = True
    try:
        await _posted(url, grader.reference or "", grader, session)
    except _Failed:
        works = False
    try:
        return _rewarded(await _posted(url, completion, grader, session))
    except _Failed as problem:
        if works:
            return _refused(grader, problem)
        return Score.ungraded(f"grader {grader.name}: {problem}")


async def _posted(
    url: str, completion: str, grader: HttpGrader, session: aiohttp.ClientSession
) -> _Reward:
    """The reward of a completion, or several by name.

    Raises:
        _Failed: there is none.
    """
    body = {"completion": completion, "arguments": grader.arguments}
    try:
        async with (
            asyncio.timeout(grader.timeout_s),
            session.post(url, json=body, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise _Failed(f"it answered {response.status}")
            return _reward_of(await read_reply(response, _MAX_REPLY_BYTES))
    except TimeoutError:
        raise _Failed(f"no answer in {grader.timeout_s:g} s", reason=_TIMED_OUT) from None
    except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        raise _Failed(str(error) or type(error).__name__) from None


def _reward_of(reply: bytes) -> _Reward:
    answer = json.loads(reply)
    if isinstance(answer, dict) and "reward" in answer:
        return finite(answer["reward"])
    if isinstance(answer, dict) and isinstance(answer.get("rewards"), dict):
        return number_or_names(answer["rewards"])
    raise ValueError("its answer has no `reward`, and no `rewards` by name")


def _rewarded(reward: _Reward) -> Score:
    """Above 0 counts as accepted: what a user's number means is theirs to say."""
    rewards = reward if isinstance(reward, dict) else {}
    total = reward_sum(rewards.values()) if isinstance(reward, dict) else reward
    right = total > 0
    verdict = Verdict.ACCEPTED if right else Verdict.WRONG_ANSWER
    return Score(verdict=verdict, reward=total, passed=int(right), rewards=rewards)


def _refused(grader: PythonGrader | HttpGrader, failure: _Failed) -> Score:
    """The score of an answer on which a grader that works failed."""
    RewardMetrics.checker_failures.inc(1, {"grader": grader.name, "reason": failure.reason})
    said = f"grader {grader.name} failed on it: {failure}"
    if grader.on_failure is None:
        return Score.ungraded(said)
    late = failure.reason == _TIMED_OUT
    verdict = Verdict.TIME_LIMIT if late else Verdict.WRONG_ANSWER
    return Score(verdict=verdict, reward=grader.on_failure, detail=said[:200], refused=True)


def _at_fault(grader: PythonGrader, problem: object) -> Score:
    """No answer can be graded so."""
    _log.warning("task_fault", grader=grader.name, reason=str(problem))
    RewardMetrics.task_faults.inc()
    return Score.ungraded(f"grader {grader.name}: {problem}")
