"""Graders that users registered: Python functions and HTTP endpoints."""

import asyncio
import json

import aiohttp

from services.observability.metrics import RewardMetrics
from services.protocol.reward.grader import HttpGrader, PythonGrader
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.graders.user_graders import finite
from services.reward_service.grading.helper_process import HelperFailed, HelperTimeout
from services.reward_service.grading.tools import Tools

_CALL = "services.reward_service.graders.user_graders:call_named"
_MAX_REPLY_BYTES = 1 << 20
_ATTEMPTS = 2


async def grade_python(completion: str, grader: PythonGrader, tools: Tools) -> Score:
    """Ask a registered function. Whatever is wrong with it is never a reward."""
    arguments = {
        "name": grader.name,
        "place": tools.config.graders.get(grader.name),
        "completion": completion,
        "arguments": grader.arguments,
    }
    try:
        reward = await tools.call_helper(_CALL, arguments, timeout_s=grader.timeout_s, of_user=True)
        return _rewarded(finite(reward))
    except (HelperTimeout, HelperFailed, ValueError) as problem:
        return Score.ungraded(f"grader {grader.name}: {problem}")


async def grade_http(completion: str, grader: HttpGrader, tools: Tools) -> Score:
    """Ask a registered endpoint: it gets `completion` and `arguments`, and answers `reward`."""
    url = tools.config.http_graders.get(grader.name)
    if url is None:
        return Score.ungraded(f"no HTTP grader is named {grader.name!r}")
    body = {"completion": completion, "arguments": grader.arguments}
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            RewardMetrics.retries.inc()
        try:
            async with asyncio.timeout(grader.timeout_s):
                return _rewarded(await _posted(url, body, await tools.http()))
        except TimeoutError:
            problem = f"no answer in {grader.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
    return Score.ungraded(f"grader {grader.name}: {problem}")


async def _posted(url: str, body: object, session: aiohttp.ClientSession) -> float:
    async with session.post(url, json=body, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        text = await response.content.read(_MAX_REPLY_BYTES)
    answer = json.loads(text)
    if not isinstance(answer, dict) or "reward" not in answer:
        raise ValueError("its answer has no `reward`")
    return finite(answer["reward"])


def _rewarded(reward: float) -> Score:
    """Above 0 counts as accepted: what a user's number means is theirs to say."""
    right = reward > 0
    verdict = Verdict.ACCEPTED if right else Verdict.WRONG_ANSWER
    return Score(verdict=verdict, reward=reward, passed=int(right))
