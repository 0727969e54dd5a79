"""The canary: compares a replica's logprobs of fixed tokens with the trainer's."""

import contextlib
import time

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.weights.replica_control import Hold
from services.protocol.weights.weight_bus import DistrustWeights, Phase, Report
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest
from services.weight_bus.delivery.canary_gaps import Gaps
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.reports import UpdateFailed
from services.weight_bus.mailbox import MailboxFull

log = Log("weight_bus")


class Canary:
    """One replica's answer to the canary of the version that it was last ordered to commit."""

    def __init__(self, replica_id: str, context: DeliveryContext) -> None:
        self._replica_id, self._context = replica_id, context
        self._manifest: WeightManifest | None = None
        self._answer: Report | None = None  # until it is judged

    def expect(self, manifest: WeightManifest) -> None:
        """The replica is ordered to commit a version: answers of other ones do not count."""
        if self._answer is not None:
            self._judge(self._answer)  # the trainer never answered: counted
        self._manifest, self._answer = manifest, None

    def take(self, report: Report) -> bool:
        """Hand in an answer; False if it is of another version."""
        if self._manifest is None or report.version != self._manifest.version:
            return False
        self._answer = report
        return True

    async def passed(self, timeout_s: float) -> None:
        """Wait until a replica that joins has given the right answer.

        Raises:
            UpdateFailed: the answer is wrong, or did not come in time, or the engine was put to
                sleep, which ends its proof.
        """
        # An engine that an operator holds computes no answer until it is released.
        await self._context.changes.until(
            lambda: self._is_released() or self._sleeps(), timeout_s=None
        )
        await self._context.changes.until(
            lambda: self._can_judge_joiner() or self._sleeps(), timeout_s=timeout_s
        )
        if self._sleeps():
            raise UpdateFailed(Phase.CANARY, "the engine was put to sleep")
        # Ranks that had not published the version might still have done so within the wait.
        answered, can_score = self._answer is not None, self._context.trainers.can_score
        if not self._can_judge() and (can_score or not answered):
            who = "the trainer" if answered else "the replica"
            raise UpdateFailed(Phase.CANARY, f"no answer of {who} in {timeout_s:g} s", silent=True)
        answer, self._answer = self._answer, None
        assert answer is not None, "answered"
        problem = self._judge(answer) or answer.error
        if problem is not None:
            raise UpdateFailed(Phase.CANARY, problem)

    def judged(self) -> tuple[int, str] | None:
        """Judge a replica in service, if both answers are there; version and problem if wrong."""
        if not self._can_judge():
            return None
        answer, self._answer = self._answer, None
        assert answer is not None, "_can_judge"
        problem = self._judge(answer)
        self._trace(answer, problem)
        return None if problem is None else (answer.version, problem)

    def _trace(self, answer: Report, problem: str | None) -> None:
        """The span of an answer that came after the update's end."""
        newest = self._context.newest()
        if not tracing.is_on() or newest is None or newest[0].version != answer.version:
            return
        began, publisher = time.time() - answer.seconds, tracing.of(newest[0].trace)
        span = tracing.begin("canary", publisher, at_s=began, replica=self._replica_id)
        if problem is not None:
            span.fail("canary")
        span.end()

    def _is_released(self) -> bool:
        replica = self._context.replicas.get(self._replica_id)
        return replica is None or replica.held is Hold.NONE

    def _sleeps(self) -> bool:
        replica = self._context.replicas.get(self._replica_id)
        return replica is not None and replica.sleeps

    def _can_judge(self) -> bool:
        """The replica has answered, and so has the trainer unless there is nothing to compare."""
        answer = self._answer
        return answer is not None and (
            answer.version in self._context.canaries or answer.canary_logprobs is None
        )

    def _can_judge_joiner(self) -> bool:
        """Bytes whose digests are right are better than no replica while no trainer is there."""
        no_trainer = self._context.trainers.current is None
        return self._can_judge() or (self._answer is not None and no_trainer)

    def _judge(self, answer: Report) -> str | None:
        """Export an answer; returns the problem of the weights, None if there is none."""
        problem = answer.not_as_sent
        if problem is None:
            problem = self._compare(answer, self._context.canaries.get(answer.version))
        if problem is not None:
            with contextlib.suppress(MailboxFull, KeyError):  # it is gone, or will be soon
                self._context.post(self._replica_id, DistrustWeights(version=answer.version))
        return problem

    def _compare(self, answer: Report, expected: CanaryLogprobs | None) -> str | None:
        """Equal outputs are only logged and counted: a step may be too small to change them."""
        tags = {"replica": self._replica_id}
        if self._manifest is not None and not self._manifest.canary:
            return None  # nothing was asked for
        if answer.canary_logprobs is None or expected is None or self._manifest is None:
            BusMetrics.canary_missed.inc(tags=tags)
            return None
        gaps = Gaps.between(answer.canary_logprobs, expected)
        BusMetrics.canary_gap.set(gaps.largest, tags)
        BusMetrics.canary_mean_gap.set(gaps.mean, tags)
        if answer.canary_unmoved:
            BusMetrics.canary_unmoved.inc(tags=tags)
            log.warning("canary did not move", replica=self._replica_id, version=answer.version)
        replica = self._context.replicas.get(self._replica_id)
        quantised = replica is not None and replica.hello.quantised
        good = self._context.good_gaps
        return good.judge(self._replica_id, gaps, self._manifest, quantised=quantised)
