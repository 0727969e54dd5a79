"""A teacher: how likely another model finds the tokens that the policy sampled."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Self

import aiohttp

from services.http.api_key import key_header
from services.orchestrator.config import OrchestratorConfig, TeacherConfig
from services.orchestrator.failures import one_line
from services.protocol.errors import NotReady
from services.protocol.run.distillation import POLICY, DistillationConfig
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory
from services.retry import retrying
from services.side_by_side import cancel

_BUSY = (429, 500, 502, 503, 504)


class TeacherFailed(Exception):
    """A teacher gave no logprobs; its text says why."""


class _Away(TeacherFailed):
    """It may answer if it is asked again."""


class Teacher:
    """Scores answers by an OpenAI-compatible server; use it as an async context.

    Args:
        order: which teacher, and what it reads besides the answer's own prompt.
        config: of the orchestrator, which knows the teachers of the deployment.
        model: served name of the policy, the teacher of itself.

    Raises:
        KeyError: the deployment knows no such teacher, which `run_check` refuses before.
    """

    def __init__(self, order: DistillationConfig, config: OrchestratorConfig, model: str) -> None:
        self._order, self._config = order, config
        self._place = _place(order.teacher, config, model)
        self._slots = asyncio.Semaphore(self._place.concurrency)
        self._calls: set[asyncio.Task[tuple[float, ...]]] = set()
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connections.

        Raises:
            InvalidInput: the variable with its key is not set.
        """
        key = key_header(self._place.key)
        timeout = aiohttp.ClientTimeout(total=self._place.timeout_s)
        self._http = aiohttp.ClientSession(headers=key, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Give up what is asked."""
        await cancel(*self._calls)
        if self._http is not None:
            await self._http.close()

    async def check(self) -> None:
        """Score a few tokens, so that a run does not sample in vain.

        Raises:
            NotReady: it cannot be asked, with the reason.
        """
        try:
            await self._scored([1, 2], [3])
        except TeacherFailed as error:
            raise NotReady(f"teacher {self._order.teacher}: {error}") from None

    def submit(self, task: Task, trajectory: Trajectory) -> "asyncio.Task[tuple[float, ...]]":
        """Ask for the natural-log probability of each token of an answer.

        The task ends with `TeacherFailed` if there is none within the teacher's deadline.
        """
        call = asyncio.create_task(self._logprobs(task, trajectory), name="teacher")
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return call

    def _ended(self, call: "asyncio.Task[tuple[float, ...]]") -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # of an answer that had no reward, nobody asks for it

    async def _logprobs(self, task: Task, trajectory: Trajectory) -> tuple[float, ...]:
        if task.given:  # not the policy's tokens: no advantage is taken of them
            return (0.0,) * len(trajectory.response_token_ids)
        async with self._slots:
            if self._order.context is None:
                prompt = list(trajectory.prompt_token_ids)
            else:
                prompt = await self._prompt(task, self._order.context)
            return await self._scored(prompt, trajectory.response_token_ids)

    async def _scored(self, prompt: list[int], response: Sequence[int]) -> tuple[float, ...]:
        body = {
            "model": self._place.model,
            "prompt": [*prompt, *response],
            "echo": True,
            "logprobs": 0,
            "max_tokens": 1,  # a token more than is wanted: not every server takes 0
            "temperature": 1.0,
        }
        answer = await self._asked("v1/completions", body)
        try:
            found = answer["choices"][0]["logprobs"]["token_logprobs"]
            own = found[len(prompt) : len(prompt) + len(response)]
            logprobs = tuple(float(one) for one in own)
        except (KeyError, IndexError, TypeError, ValueError):
            raise TeacherFailed("it returns no logprobs of a prompt") from None
        if len(logprobs) != len(response) or not all(map(math.isfinite, logprobs)):
            raise TeacherFailed("it did not return a logprob of each token of the answer")
        return logprobs

    async def _prompt(self, task: Task, context: str) -> list[int]:
        """The tokens of the task's messages with the context at their end."""
        try:
            told = context.format_map(task.data)
        except (LookupError, ValueError, AttributeError) as error:
            problem = f"task {task.task_id} does not fill in its context: {error!r}"
            raise TeacherFailed(problem) from None
        *before, last = task.chat
        messages = [*before, {**last, "content": f"{last['content']}\n\n{told}"}]
        body = {"model": self._place.model, "messages": messages, "add_generation_prompt": True}
        answer = await self._asked("tokenize", body)
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise TeacherFailed("it does not tokenize messages")
        return tokens

    async def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await retrying(
            lambda: self._ask(path, body),
            on=_Away,
            pauses=self._config.pauses,
            timeout_s=self._place.timeout_s,
        )

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self._http is not None, "use the teacher as an async context"
        try:
            async with self._http.post(f"{self._place.url}/{path}", json=body) as response:
                if response.status == 200:
                    answer: dict[str, Any] = await response.json()
                    return answer
                problem = f"status {response.status}: {one_line(await response.text())}"
                kind = _Away if response.status in _BUSY else TeacherFailed
                raise kind(problem)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise _Away(one_line(repr(error))) from None


def _place(name: str, config: OrchestratorConfig, model: str) -> TeacherConfig:
    if name == POLICY:
        key = config.router_key_env
        return TeacherConfig(url=config.router_url, model=model, api_key_env=key)
    return config.teachers[name]
