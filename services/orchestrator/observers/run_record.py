"""Records of a run: each train step, and the summary."""

import shutil
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from services.ledger.ledger import Ledger
from services.observability.log import Log
from services.observability.metrics import Gauge, RunMetrics
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.events import Event, GroupClosed, RolledBack
from services.orchestrator.core.results import Graded, GroupResult, tokens_before
from services.orchestrator.core.schedule import Selection
from services.orchestrator.observers.findings import findings, gain, of_no_gain
from services.orchestrator.observers.group_record import GroupRecord, trajectory_line
from services.orchestrator.observers.timeline import Timeline
from services.orchestrator.trackers.tracker import Trackers
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import Finding, RunSummary
from services.protocol.trainer import TrainReport

_log = Log("orchestrator")


class RunRecord:
    """Writes records to the run directory, the ledger's facts, metrics and log."""

    def __init__(self, context: RunContext, ledger: Ledger, trackers: Trackers) -> None:
        self._directory = directory = context.directory
        self._ledger, self._progress = ledger, context.progress
        self._run = context.run
        self._samples = context.config.sample_trajectories
        self._groups = GroupRecord(directory.groups, directory.tokens)
        self.timeline = Timeline(directory.timeline)
        self.trackers = trackers
        self._fresh: list[Evaluation] = []
        self._measured = directory.evaluations()
        self.tags = context.tags

    def write(
        self,
        *,
        batch: Selection,
        results: list[GroupResult],
        report: TrainReport,
        seconds: dict[str, float],
    ) -> None:
        """Record one step; `results` are those of the batch, trained ones first.

        Its tokens are still being written then: wait for `settled` before the next step.
        """
        progress = self._progress
        sampled = [result for result in results if not result.task.given]
        graded = [one for result in sampled for one in result.graded]
        if graded:
            progress.reward = fmean(one.reward for one in graded)
        progress.staleness = float(max(batch.staleness))
        progress.measure_rate()
        for result in results:
            progress.lengths.consumed(result.lengths)
        progress.tokens_sampled = self._ledger.tokens_sampled()
        imbalance = self._ledger.imbalance()
        line = self._line(batch, results, graded, report, seconds)
        self._directory.metrics.write(line)
        self.trackers.step(line)
        self._fresh.clear()
        kept = results[: len(self.detailed(batch))]
        self.show(kept, step=report.step)
        self._groups.write_groups(results, report.step, report)
        self._groups.write_tokens(kept, report)
        self.timeline.flush()
        self._ledger.note(
            elapsed_s=progress.elapsed_s,
            recoveries=progress.recoveries,
            policy_version=report.policy_version,
        )
        self._measure(line, imbalance)
        if imbalance:
            _log.warning("ledger_imbalance", **self.tags, imbalance=imbalance)

    async def settled(self) -> None:
        """Wait until all records of the newest step are written."""
        await self._groups.tokens_written()

    def detailed(self, batch: Selection) -> tuple[int, ...]:
        """Sample groups of a batch that are recorded token by token."""
        return batch.train[: self._samples]

    def on(self, event: Event) -> None:
        """See `Observer`: groups that belong to no train step, and steps that are done again."""
        match event:
            case GroupClosed(result=GroupResult() as result):
                self._groups.write_groups([result], self._progress.step)
            case RolledBack(step=step):
                self._rolled_back(step)

    def sampled_by_evaluation(self, tokens: int) -> None:
        """Count the response tokens of an evaluation, whether its result is of use or not."""
        progress = self._progress
        progress.tokens_evaluated += tokens
        progress.tokens_arrived += tokens
        RunMetrics.tokens.inc(tokens, self.tags)
        self._ledger.note(tokens_evaluated=progress.tokens_evaluated)

    def answered(self, answers: Sequence[dict[str, Any]]) -> None:
        """Record answers to held-out tasks for people to read."""
        self._directory.heldout_answers.write(*answers)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Record one evaluation; the next train step's line has it too."""
        if evaluation.pass_rate is not None:
            self._progress.evaluations[evaluation.name] = evaluation
        self._measured.append(evaluation)
        self._directory.append_evaluation(evaluation)
        now = time.time()
        span = (now - evaluation.seconds, now)
        self.timeline.span(
            "evaluation", "evaluate", *span, set=evaluation.name, step=evaluation.step
        )
        self.trackers.evaluated(evaluation)
        self._fresh.append(evaluation)

    def show(self, results: list[GroupResult], *, step: int) -> None:
        """Record one answer of each group for people to read; `step` is the newest train step."""
        lines = (trajectory_line(result, 0, step) for result in results)
        self._directory.trajectories.write(*lines)

    def _line(
        self,
        batch: Selection,
        results: list[GroupResult],
        graded: list[Graded],
        report: TrainReport,
        seconds: dict[str, float],
    ) -> dict[str, Any]:
        progress = self._progress
        of_first_set = (one for one in self._fresh if one.name == progress.heldout_set)
        heldout = next(reversed(list(of_first_set)), None)
        lengths = [len(one.trajectory.response_token_ids) for one in graded] or [0]
        rewards = {
            name: fmean(one.score.rewards[name] for one in graded)
            for name in self._run.algorithm.rewards
            if graded
        }
        return {
            "step": report.step,
            "policy_version": report.policy_version,
            "reward": progress.reward,
            **({"rewards": rewards} if rewards else {}),
            "heldout_pass_rate": heldout.pass_rate if heldout else None,
            "heldout_step": heldout.step if heldout else None,
            "evaluations": [one.model_dump(mode="json") for one in self._fresh],
            "groups_trained": len(batch.train),
            "groups_filtered": len(batch.filtered),
            "trajectories": len(graded),
            "trajectories_ungraded": sum(len(result.ungraded) for result in results),
            "staleness_mean": fmean(batch.staleness),
            "staleness_max": max(batch.staleness),
            "response_tokens_mean": fmean(lengths),
            "sampled_tokens_mean": progress.lengths.take_step(),
            "length_bias": progress.lengths.running,
            "tokens_masked": sum(
                tokens_before(one.trajectory, batch.min_version)
                for result in results[: len(batch.train)]
                for one in result.graded
            ),
            "idle_seconds": progress.idle.take(),
            "given_answers": sum(result.task.given for result in results),
            "truncated": sum(one.trajectory.finish_reason == "length" for one in graded)
            / max(1, len(graded)),
            "tokens_trained": report.tokens,
            "tokens_sampled": progress.tokens_sampled,
            "tokens_evaluated": progress.tokens_evaluated,
            "tokens_per_second": progress.tokens_per_second,
            "rollout_s_mean": fmean(result.rollout_s for result in results),
            "rollout_s_max": max(result.rollout_s for result in results),
            "score_s_mean": fmean(result.score_s for result in results),
            "seconds": seconds,
            "trainer": report.metrics,
            "trainer_seconds": report.seconds,
            "ledger": self._ledger.counts().model_dump(),
            "recoveries": progress.recoveries,
            "elapsed_s": progress.elapsed_s,
        }

    def _measure(self, line: dict[str, Any], imbalance: int) -> None:
        if line["reward"] is not None:
            RunMetrics.reward.set(line["reward"], self.tags)
        for name, reward in line.get("rewards", {}).items():
            RunMetrics.named_reward.set(reward, self.tags | {"name": name})
        RunMetrics.step.set(line["step"], self.tags)
        RunMetrics.staleness.set(line["staleness_max"], self.tags)
        RunMetrics.ledger_imbalance.set(imbalance, self.tags)
        RunMetrics.disk_free.set(shutil.disk_usage(self._directory.path).free, self.tags)
        self._measure_schedule(line)
        for phase, seconds in line["seconds"].items():
            RunMetrics.phase.observe(seconds, self.tags | {"phase": phase})
        _log.info(
            "step",
            **self.tags,
            step=line["step"],
            version=line["policy_version"],
            reward=line["reward"] and round(line["reward"], 4),
            staleness=line["staleness_max"],
            seconds={name: round(value, 3) for name, value in line["seconds"].items()},
        )

    def _measure_schedule(self, line: dict[str, Any]) -> None:
        RunMetrics.masked_tokens.inc(line["tokens_masked"], self.tags)
        settled = self._progress.lengths.settled  # an alert would take noise for a bias before
        RunMetrics.length_bias.set((line["length_bias"] or 0.0) if settled else 0.0, self.tags)
        if self._progress.lengths.alarm:
            _log.warning("length_bias", **self.tags, bias=round(line["length_bias"], 3))

    def _rolled_back(self, step: int) -> None:
        """Steps above `step` are done again: remove their records."""
        if self._directory.truncate_metrics(step):
            self.trackers.rolled_back(step)
        self._fresh = [one for one in self._fresh if one.step <= step]
        self._measured = [one for one in self._measured if one.step <= step]
        before, after = self._evaluations()
        self._progress.evaluations = before | after

    async def close(self) -> None:
        """Close all files; only the summary is written later."""
        self.timeline.close()
        self._directory.close()
        await self._groups.close()

    def forget(self) -> None:
        """Remove the run's gauges: they show a run in progress."""
        for metric in vars(RunMetrics).values():
            if isinstance(metric, Gauge):
                metric.forget(self.tags)
        for name in self._progress.evaluations:
            RunMetrics.heldout.forget(self.tags | {"set": name})
        for name in self._run.algorithm.rewards:
            RunMetrics.named_reward.forget(self.tags | {"name": name})

    def summarise(self, *, seed: int, pushes: int) -> RunSummary:
        """Write `summary.json`; `pushes` are the weight commits since the run (re)started."""
        progress = self._progress
        pushes += self._ledger.fact("pushes", 0)
        self._ledger.note(elapsed_s=progress.elapsed_s, pushes=pushes)
        progress.tokens_sampled = self._ledger.tokens_sampled()
        before, after = self._evaluations()
        first = progress.heldout_set
        began, ended = before.get(first), after.get(first)
        rates = [one.pass_rate if one else None for one in (began, ended)]
        summary = RunSummary(
            run_id=progress.run_id,
            heldout_pass_rate_before=rates[0],
            heldout_pass_rate_after=rates[1],
            heldout_step=ended.step if ended else None,
            heldout_problem=progress.heldout_problem,
            evaluations_before=list(before.values()),
            evaluations_after=list(after.values()),
            train_steps=progress.step,
            wall_s=progress.elapsed_s,
            tokens_sampled=progress.tokens_sampled,
            tokens_evaluated=progress.tokens_evaluated,
            weight_pushes=pushes,
            policy_version=progress.policy_version or 0,
            seed=seed,
            ledger=self._ledger.counts(),
            failures=dict(progress.failures.counts),
            failure_example=progress.failures.example,
            findings=self._findings(*rates),
        )
        self._directory.write_summary(summary)
        return summary

    def _findings(self, before: float | None, after: float | None) -> list[Finding]:
        """Why the run learned nothing; none for one that learned."""
        rewards = [line["reward"] for line in self._directory.metrics.lines()]
        measured = gain(self._run, before, after, rewards)
        nothing = of_no_gain(self._run, self._ledger.counts(), measured)
        causes = findings(self._run, self._ledger)
        if nothing is None:
            return causes if measured is None else []
        return [nothing, *causes]

    def _evaluations(self) -> tuple[dict[str, Evaluation], dict[str, Evaluation]]:
        """Results of each held-out set: before training, and the newest of trained weights."""
        measured = [one for one in self._measured if one.pass_rate is not None]
        before = {one.name: one for one in measured if not one.step}
        return before, {one.name: one for one in measured if one.step}
