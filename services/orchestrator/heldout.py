"""When held-out tasks are measured in a run, and what is remembered of it."""

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.evaluation import Evaluation, evaluate
from services.orchestrator.fleet import Fleet
from services.orchestrator.progress import Progress
from services.orchestrator.rollout import Sampler
from services.orchestrator.scoring import Scorer
from services.protocol.orchestrator import RunConfig, RunState
from services.protocol.task import Task

_log = Log("orchestrator")


class HeldOut:
    """The held-out tasks of one run."""

    def __init__(
        self,
        tasks: list[Task],
        *,
        run: RunConfig,
        config: OrchestratorConfig,
        sampler: Sampler,
        scorer: Scorer,
        fleet: Fleet,
        progress: Progress,
    ) -> None:
        self._tasks = tasks
        self._run = run
        self._config = config
        self._sampler = sampler
        self._scorer = scorer
        self._fleet = fleet
        self._progress = progress

    async def measure_if_due(self) -> None:
        """Measure after a train step, if the run file asks for it after this one."""
        every, step = self._run.evaluation.every, self._progress.step
        # After the last step comes the evaluation of the whole run.
        if every and step % every == 0 and step < self._run.steps:
            version = self._progress.policy_version
            if version is not None:
                await self._fleet.wait_settled(version, self._config.replicas_timeout_s)
            await self.measure(f"after step {step}")

    async def measure(self, when: str) -> Evaluation:
        """Ask all of them now; `when` is for people."""
        progress = self._progress
        state = progress.state
        progress.enter(RunState.EVALUATING, f"{len(self._tasks)} held-out tasks {when}")
        result = await evaluate(
            self._tasks,
            run=self._run,
            run_id=progress.run_id,
            client=self._sampler,
            scorer=self._scorer,
            concurrency=self._config.evaluation_concurrency,
        )
        progress.tokens += result.tokens
        tags = {"run": progress.run_id}
        RunMetrics.tokens.inc(result.tokens, tags)
        if result.problem is not None:
            progress.heldout_problem = f"{when}: {result.problem}"
        if result.pass_rate is not None:
            progress.heldout, progress.evaluated_step = result.pass_rate, progress.step
            RunMetrics.heldout.set(result.pass_rate, tags)
        _log.info("evaluated", run=progress.run_id, when=when, **vars(result))
        progress.enter(state, progress.detail)
        return result
