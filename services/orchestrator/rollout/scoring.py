"""Scores of finished trajectories, in few calls to the reward service."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from services.changes import Changes
from services.observability.log import Log
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import NotReady, ReplicaLost
from services.protocol.reward.reward_service import RewardService, Score, ScoreJob
from services.protocol.reward.reward_sum import reward_sum
from services.retry import retrying
from services.side_by_side import cancel, running

REWARD_NAMES = "reward_names"
"""Cause of a score whose names are not those of the run file."""
_ANSWERS_PER_SANDBOX = 4
"""Answers in calls for each sandbox: more than one, because most answers of a call are graded long
before the slowest, and few, because an answer waits at the service for `queue_wait_s` at most."""
_FEWEST_CALLS = 4
_LOOK_S = 10.0
_log = Log("orchestrator")


class Scorer:
    """Coalesces score jobs; every job gets a score, which may say that grading failed.

    The first job of a call waits a moment for company. While all calls are busy, jobs
    gather, so that a slow reward service is met with larger calls rather than more. How many
    calls keep the service busy depends on its sandboxes, which it is asked for again and again:
    replicas come and go.
    """

    def __init__(self, reward: RewardService, config: OrchestratorConfig) -> None:
        self._reward = reward
        self._config = config
        self._waiting: deque[tuple[ScoreJob, asyncio.Future[Score]]] = deque()
        self._arrived = asyncio.Event()
        self._most_calls = config.score_concurrency or _FEWEST_CALLS
        self._calls: set[asyncio.Task[None]] = set()
        self._changes = Changes()  # of the calls, and of how many there may be

    def submit(self, job: ScoreJob) -> asyncio.Future[Score]:
        """Queue a job; the future never fails. A full queue answers at once, ungraded."""
        if len(self._waiting) >= self._config.score_queue:
            return known(_ungraded(job, "too many trajectories wait to be scored"))
        future: asyncio.Future[Score] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        self._arrived.set()
        return future

    async def run(self) -> None:
        """Serve the queue until cancelled; then no call is left running."""
        try:
            async with running(self._follow_sandboxes(), name="sandboxes of the reward service"):
                while True:
                    await self._arrived.wait()
                    if len(self._waiting) < self._config.score_batch:
                        await asyncio.sleep(self._config.score_wait_s)
                    await self._changes.until(self._may_call, timeout_s=None)
                    self._launch()
        finally:
            await cancel(*self._calls)

    async def _follow_sandboxes(self) -> None:
        """Allow as many calls as keep the sandboxes busy, unless the number is configured."""
        while self._config.score_concurrency is None:
            try:
                sandboxes = await self._reward.sandboxes()
                calls = math.ceil(_ANSWERS_PER_SANDBOX * sandboxes / self._config.score_batch)
                self._most_calls = max(_FEWEST_CALLS, calls)
                self._changes.notify()
            except Exception as error:  # noqa: BLE001  the number before still holds
                _log.info("sandboxes_unknown", error=str(error))
            await asyncio.sleep(_LOOK_S)

    def _may_call(self) -> bool:
        return len(self._calls) < self._most_calls

    def _launch(self) -> None:
        size = min(len(self._waiting), self._config.score_batch)
        batch = [self._waiting.popleft() for _ in range(size)]
        if not self._waiting:
            self._arrived.clear()
        call = asyncio.create_task(self._call(batch), name="score")
        self._calls.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._changes.notify()

    async def _call(self, batch: list[tuple[ScoreJob, asyncio.Future[Score]]]) -> None:
        live = [(job, future) for job, future in batch if not future.done()]
        scores = await self._graded([job for job, _ in live]) if live else {}
        for job, future in live:
            if not future.done():
                future.set_result(scores.get(job.job_id) or _ungraded(job, "no answer"))

    async def _graded(self, jobs: list[ScoreJob]) -> dict[str, Score]:
        """Call the service until the deadline; a job without an answer is an infrastructure error.

        Jobs with which a replica died are given to another once: they may be why it died.
        """
        timeout_s, problem, lost = self._config.score_timeout_s, "no answer", 0

        def failed(error: NotReady, _: float) -> None:
            nonlocal problem, lost
            problem, lost = str(error), lost + isinstance(error, ReplicaLost)
            if lost > 1:
                raise error

        try:
            async with asyncio.timeout(timeout_s):
                scores = await retrying(
                    lambda: self._reward.score(jobs),
                    pauses=self._config.pauses,
                    timeout_s=timeout_s,
                    failed=failed,
                )
                return {score.job_id: score for score in scores}
        except TimeoutError:
            problem = f"not scored in {timeout_s:g} s: {problem}"
        except NotReady as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  the service broke its contract
            problem = repr(error)
        _log.warning("scoring_failed", jobs=len(jobs), error=problem)
        return {job.job_id: _ungraded(job, problem) for job in jobs}


def known(score: Score) -> asyncio.Future[Score]:
    """A future that has its score."""
    future: asyncio.Future[Score] = asyncio.get_running_loop().create_future()
    future.set_result(score)
    return future


def _ungraded(job: ScoreJob, problem: str) -> Score:
    return Score.ungraded(problem, job_id=job.job_id, total=job.grader.total)


def weighed(score: Score, weights: Mapping[str, float]) -> Score:
    """The score with the weighted sum of its named rewards as its reward.

    It stays as it is without weights or without a reward. Names that are missing or that have no
    weight leave the answer without a reward (`reward_names`): they are never taken as 0. An answer
    on which its grader failed has the reward of that failure under each name.

    Args:
        score: of an answer.
        weights: `algorithm.rewards` of the run file.
    """
    if not weights or score.reward is None:
        return score
    rewards = dict.fromkeys(weights, score.reward) if score.refused else score.rewards
    if rewards.keys() != weights.keys():
        problem = (
            f"its grader named the rewards {sorted(rewards)}, algorithm.rewards names "
            f"{sorted(weights)}: make them the same"
        )
        return Score.ungraded(problem, job_id=score.job_id, total=score.total, cause=REWARD_NAMES)
    reward = reward_sum(weight * rewards[name] for name, weight in weights.items())
    return replace(score, reward=reward, rewards=rewards)


def finite(score: Score) -> Score:
    """The score, without a reward where a sum of rewards is too large for a number."""
    rewards = (score.reward or 0.0, *(one for _, one in score.returns))
    if all(map(math.isfinite, rewards)):
        return score
    problem = "its rewards add up to no finite number"
    return Score.ungraded(problem, job_id=score.job_id, total=score.total, cause="reward_infinite")


class BatchBarrier:
    """Holds scoring back until a whole batch is rolled out, to measure the overlap's worth."""

    def __init__(self, *, batch_groups: int, enabled: bool) -> None:
        self._batch_groups = batch_groups
        self._enabled = enabled
        self._rolling = 0
        self._held, self._gate = 0, asyncio.Event()

    def enter(self) -> None:
        """A group's rollout begins."""
        self._rolling += 1

    def leave(self) -> None:
        """A group's rollout ended, with or without an answer."""
        self._rolling -= 1
        self._release()

    async def passed(self) -> None:
        """Wait, after `leave`, for the rest of the batch; its rollouts have deadlines."""
        if not self._enabled:
            return
        gate = self._gate
        self._held += 1
        self._release()
        await gate.wait()

    def _release(self) -> None:
        if not self._rolling or self._held >= self._batch_groups:
            self._gate.set()
            self._held, self._gate = 0, asyncio.Event()
