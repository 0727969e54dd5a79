"""What is audited: the tasks of a run file, each with its environment or its grader."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import httpx

from millrace_tools.audit.agent_player import AgentPlayer
from millrace_tools.audit.policy.episode_server import Heard
from services.orchestrator.rollout.environment_process import EnvironmentProcess
from services.orchestrator.rollout.rollout import RolloutFailed
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.reward.grader import MathsGrader, with_question
from services.protocol.reward.reward_service import ScoreJob
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.router import SESSION_HEADER
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import LIVE, OUTSIDE, Task
from services.side_by_side import gathered

if TYPE_CHECKING:
    from services.reward_service.scoring import Scoring


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one episode ended.

    Attributes:
        reward: None if there is none.
        reason: why there is none, empty if there is one.
        seconds: how long it took, grading included.
        calls: that the environment made of the policy.
        episode: its name.
    """

    reward: float | None
    reason: str = ""
    seconds: float = 0.0
    calls: int = 0
    episode: str = ""


class Policy(Protocol):
    """Answers the calls of episodes."""

    url: str
    sandboxes: Any

    def begin(self, script: Any) -> str:
        """The name of a new episode."""

    def heard(self, episode: str) -> Heard:
        """What has been said in an open episode."""

    def end(self, episode: str) -> None:
        """The episode is over."""


class Subject:
    """Plays tasks; use it as an async context.

    Args:
        run: the run file.
        policy: answers.
        scoring: grades texts; another one may take its place.
        at_once: episodes side by side.
        timeout_s: longest episode.
        agent: the program that plays tasks whose environment is `external`, and its arguments.

    Attributes:
        episodes: played so far.
        has_agent: whether a program plays.
    """

    def __init__(
        self,
        run: RunConfig,
        policy: Policy,
        scoring: "Scoring",
        *,
        at_once: int,
        timeout_s: float,
        agent: Sequence[str] = (),
    ) -> None:
        self._run, self._policy, self.scoring = run, policy, scoring
        self._timeout_s = timeout_s
        self._agent = (
            AgentPlayer(agent, at_once=at_once, timeout_s=timeout_s, graders=run.graders)
            if agent
            else None
        )
        self.episodes, self.has_agent = 0, bool(agent)
        self._seeds = itertools.count()
        self._slots = asyncio.Semaphore(at_once)
        self._environments: dict[str, EnvironmentProcess] = {}
        self._inside = ""
        self._http = httpx.AsyncClient(trust_env=False, timeout=timeout_s)

    async def __aenter__(self) -> Self:
        """Environments are imported when they are needed."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End every process of an environment."""
        await self.restart()
        await self._http.aclose()
        if self._agent is not None:
            self._agent.close()

    async def restart(self, *, inside: str = "") -> None:
        """Have each environment imported anew, in another process.

        Args:
            inside: a file that imports it there: the hexadecimal digits of its name are a name in
                that file.
        """
        for environment in self._environments.values():
            await environment.close()
        self._environments, self._inside = {}, inside

    def processes(self) -> list[int]:
        """Those in which environments run now; one that is being imported has none yet."""
        return [one.worker for one in self._environments.values() if one.worker]

    async def play_all(self, tasks: Sequence[Task], scripts: Sequence[Any]) -> list[Outcome]:
        """One episode of each task, side by side, with the script at the same place."""
        return await gathered(self.play(*pair) for pair in zip(tasks, scripts, strict=True))

    async def play(self, task: Task, script: Any = None) -> Outcome:
        """One episode, begun with what its policy takes as a script. What fails is an outcome.

        Raises:
            InvalidInput: the environment cannot be imported.
        """
        async with self._slots:
            self.episodes += 1
            environment = await self._imported(task)  # no part of an episode's time
            began = time.monotonic()
            episode = self._policy.begin(script)
            try:
                async with asyncio.timeout(self._timeout_s):
                    reward = await self._rewarded(task, episode, environment)
                outcome = Outcome(reward=reward)
            except RolloutFailed as failed:
                outcome = Outcome(reward=None, reason=str(failed))
            except TimeoutError:
                outcome = Outcome(reward=None, reason=f"not ended after {self._timeout_s:g} s")
            seconds = time.monotonic() - began
            calls = self._policy.heard(episode).calls
            self._policy.end(episode)
            return replace(outcome, seconds=seconds, calls=calls, episode=episode)

    async def _imported(self, task: Task) -> EnvironmentProcess | None:
        """The process of the task's environment; None where none of the user's code plays."""
        name = task.environment
        if name is None or (name == OUTSIDE and self._agent is not None):
            return None
        environment = self._environments.get(name)
        if environment is None:
            inside = f"{self._inside}:{name.encode().hex()}"
            environment = EnvironmentProcess(inside if self._inside else name)
            self._environments[name] = environment
        await environment.start()
        return environment

    async def _rewarded(
        self, task: Task, episode: str, environment: EnvironmentProcess | None
    ) -> float:
        if task.environment is None:
            return await self._graded(task, await self._answer(task, episode))
        if environment is None:
            assert self._agent is not None
            return await self._by_agent(task, episode, self._agent)
        outcome = await environment.run(self._order(task, episode))
        if "rewards" in outcome:
            return reward_sum(outcome["rewards"].values())
        if "reward" in outcome:
            return float(outcome["reward"])
        return await self._graded(task, str(outcome["text"]))

    async def _by_agent(self, task: Task, episode: str, agent: AgentPlayer) -> float:
        """As a run does: its own reward and those that it posted, or its last words graded."""
        ending = await agent.run(self._order(task, episode))
        heard = self._policy.heard(episode)
        if not heard.calls:
            raise RolloutFailed("environment_never_called", "the program made no call")
        asks = {"text", "grader"} & ending.keys()
        if asks or ("reward" not in ending and heard.reward is None):
            text = str(ending.get("text", heard.said))
            return await self._graded(task, text, named=ending.get("grader"))
        return float(ending.get("reward", 0.0)) + (heard.reward or 0.0)

    async def _answer(self, task: Task, episode: str) -> str:
        """One call, as a run makes it for a task without an environment."""
        order = self._order(task, episode)
        body = {**order["fixed"], "messages": task.chat, "max_tokens": order["max_tokens"]}
        url = f"{self._policy.url}/v1/chat/completions"
        answer = await self._http.post(url, json=body, headers=order["session"])
        if answer.status_code != httpx.codes.OK:
            raise RolloutFailed(f"http_{answer.status_code}", answer.text[:300])
        return str(answer.json()["choices"][0]["message"]["content"] or "")

    async def _graded(self, task: Task, text: str, *, named: str | None = None) -> float:
        grader = self._run.graders[named] if named else task.grader
        grader = with_question(grader, task.question)
        if grader is None:
            raise RolloutFailed("environment_result", "a text, and the task has no grader for it")
        job = ScoreJob(job_id=task.task_id, completion=text, grader=grader)
        (score,) = await self.scoring.score([job])
        if score.reward is None:
            raise RolloutFailed(score.verdict.value, score.detail)
        return score.reward

    async def are_equal(self, known: Sequence[str], said: str) -> bool:
        """Whether a text is one of the known answers, mathematically."""
        grader = MathsGrader(kind="maths", expected=list(known))
        (score,) = await self.scoring.score([ScoreJob(job_id="a", completion=said, grader=grader)])
        return score.reward == 1.0

    def _order(self, task: Task, episode: str) -> dict[str, Any]:
        return {
            "task": task.model_dump(mode="json", exclude_unset=True),
            "url": self._policy.url,
            "session": {SESSION_HEADER: episode},
            "api_key": "none",
            "fixed": {"model": self._run.model, "temperature": self._run.sampling.temperature},
            "max_tokens": self._run.sampling.max_tokens,
            "seed": next(self._seeds),  # another answer to the same task
            "timeout_s": self._timeout_s,
            "sandbox_timeout_s": self._timeout_s,
        }


def audited_tasks(run: RunConfig, count: int, *, agent: bool) -> list[Task]:
    """Tasks of the run, spread evenly over all for which it samples answers.

    Raises:
        InvalidInput: agents play them and none is given, or the files cannot be used.
    """
    if LIVE in run.environments:
        fix = "Live agents have tasks of their own: an audit has none to play."
        raise InvalidInput("environment", LIVE, fix)
    if OUTSIDE in run.environments and not agent:
        fix = 'Name the program that plays the tasks: --agent "python agent.py {prompt}".'
        raise InvalidInput("environment", OUTSIDE, fix)
    if agent and OUTSIDE not in run.environments:
        fix = "It is for tasks whose environment is `external`, and the run file has none."
        raise InvalidInput("--agent", run.environment, fix)
    # At least the held-out ones are left: given answers are for training alone.
    tasks = [task for task in TaskTable(run).values() if not task.given]
    count = min(count, len(tasks))
    return [tasks[place * len(tasks) // count] for place in range(count)]
