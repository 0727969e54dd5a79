"""Requests in flight on every leased replica, each of which ends in a named status."""

import asyncio
import itertools
from collections import Counter
from enum import StrEnum

import aiohttp

from benchmarks.soak.engine import Findings
from services.changes import Changes
from services.protocol.weights.weight_bus import Member, MemberTable
from services.router.answering.journal import ChoiceJournal
from services.router.errors import UpstreamBroken
from tests.chaos.answers import STREAMS, Judge
from tests.chaos.request import TOKENS, open_session, stream
from tests.chaos.scene import Scene

REQUEST_S = 120.0
"""Deadline of an answer: longer than the longest freeze, and the restart that may follow it."""

EXACT = 1e-4
"""Largest difference of a logprob from the reference's, nats."""

_JUDGE_PAUSE_S = 0.5  # between two judged answers: the reference must not starve the engines


class Ending(StrEnum):
    """How a request ended; the first two are as they should be."""

    FINISHED = "finished"
    CUT = "cut off by the end of its replica"
    REFUSED = "refused or ended early by a living replica"
    BROKEN = "broken by a living replica"
    LATE = "late"


class Load:
    """Keeps `STREAMS` requests in flight on each leased replica and looks at every label.

    Attributes:
        endings: how many requests ended how.
        started: requests that were sent.
        tokens: tokens that were served.
        updates: most versions within one answer.
        judged: answers compared with the reference, by replica.
        gap: largest difference of a logprob so far, nats.
    """

    def __init__(self, scene: Scene, judge: Judge, findings: Findings) -> None:
        self._scene, self._judge, self._findings = scene, judge, findings
        self.endings: Counter[Ending] = Counter()
        self.judged: Counter[str] = Counter()
        self.started = self.tokens = self.updates = 0
        self.gap = 0.0
        self._leased: dict[str, Member] = {}
        self._newest: dict[str, int] = {}
        self._ended: dict[str, ChoiceJournal] = {}  # the last of each replica, to be judged
        self._streams: dict[str, list[asyncio.Task[None]]] = {}
        self._over = self._ended_all = False
        self._changes = Changes()
        self._session = open_session()

    def follow(self, table: MemberTable) -> None:
        """Take the leases as they are now; new replicas get requests from now on."""
        self._leased = {member.replica_id: member for member in table.leased}
        for replica_id in self._leased:
            if replica_id not in self._streams and replica_id not in self._scene.killed:
                self._streams[replica_id] = [
                    asyncio.create_task(self._keep_asking(replica_id)) for _ in range(STREAMS)
                ]
        self._changes.notify()

    def raise_failure(self) -> None:
        """Raise what ended a stream that should have gone on."""
        for replica_id, tasks in list(self._streams.items()):
            for task in tasks:
                if task.done():
                    task.result()
            if all(task.done() for task in tasks) and replica_id in self._scene.killed:
                del self._streams[replica_id]

    async def served(self, replica_id: str, timeout_s: float) -> None:
        """Return when the replica has served a token."""
        served = await self._changes.until(lambda: replica_id in self._newest, timeout_s=timeout_s)
        assert served, f"{replica_id} serves no tokens"

    async def finish(self) -> None:
        """Let all requests end, each within its deadline."""
        self._over = True
        self._changes.notify()
        tasks = [task for tasks in self._streams.values() for task in tasks]
        _, pending = await asyncio.wait(tasks, timeout=REQUEST_S + 10) if tasks else ((), ())
        self._ended_all = True
        self._changes.notify()
        assert not pending, f"{len(pending)} requests missed their deadline unnoticed"

    async def close(self) -> None:
        """Cut off what is still in flight."""
        tasks = [task for tasks in self._streams.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    async def judge(self) -> None:
        """Compare one answer after another with the reference, until all have ended."""
        while not (self._ended_all and not self._ended):
            await self._changes.until(lambda: bool(self._ended) or self._ended_all, timeout_s=None)
            if self._ended:
                await self._judge_one()
            if not self._ended_all:
                await asyncio.sleep(_JUDGE_PAUSE_S)

    async def _judge_one(self) -> None:
        # The last answer of the replica that was judged least.
        replica_id = min(self._ended, key=lambda name: self.judged[name])
        journal = self._ended.pop(replica_id)
        gap = await asyncio.to_thread(self._judge.worst, journal)
        self.judged[replica_id] += 1
        self.gap = max(self.gap, gap)
        if not gap < EXACT:
            labels = [span[0] for span in journal.spans]
            self._findings.wrong("logprob", f"{replica_id} is {gap:.2g} nats off under {labels}")

    async def _keep_asking(self, replica_id: str) -> None:
        numbers = itertools.count()
        while not self._done(replica_id):
            await self._changes.until(
                lambda: replica_id in self._leased or self._done(replica_id), timeout_s=1.0
            )
            member = self._leased.get(replica_id)
            if member is not None and not self._done(replica_id):
                await self._ask(member, f"soak-{id(numbers)}-{next(numbers)}")

    def _done(self, replica_id: str) -> bool:
        return self._over or replica_id in self._scene.killed

    async def _ask(self, member: Member, request_id: str) -> None:
        replica_id = member.replica_id
        # The newest version that it served, or reported to the bus, before the request was sent.
        floor = max(self._newest.get(replica_id, -1), member.committed_version or 0)
        journal = ChoiceJournal(0)
        journal.begin_segment(replica_id)
        self.started += 1
        ending, why = Ending.FINISHED, ""
        try:
            async with asyncio.timeout(REQUEST_S):
                on_chunk = lambda: self._look_at(journal, replica_id, floor)  # noqa: E731
                await stream(self._session, member, request_id, journal, on_chunk)
        except TimeoutError:
            ending, why = Ending.LATE, f"{len(journal.token_ids)} tokens in {REQUEST_S:g} s"
        except AssertionError as refused:
            ending, why = Ending.REFUSED, str(refused)
        except (aiohttp.ClientError, OSError, UpstreamBroken) as broken:
            ending, why = Ending.BROKEN, f"{type(broken).__name__}: {broken}"
        if ending is not Ending.FINISHED and replica_id in self._scene.killed:
            ending = Ending.CUT
        self._account(journal, replica_id, ending, why)

    def _account(self, journal: ChoiceJournal, replica_id: str, ending: Ending, why: str) -> None:
        self.endings[ending] += 1
        self.tokens += len(journal.token_ids)
        self.updates = max(self.updates, len(journal.spans))
        if ending not in (Ending.FINISHED, Ending.CUT):
            self._findings.wrong("request", f"{replica_id}: {ending}: {why}")
        if ending is Ending.FINISHED and len(journal.token_ids) != TOKENS:
            self._findings.wrong("request", f"{replica_id}: {len(journal.token_ids)} tokens")
        if journal.token_ids:
            self._ended[replica_id] = journal
        self._changes.notify()

    def _look_at(self, journal: ChoiceJournal, replica_id: str, floor: int) -> None:
        """Labels never go back, neither in an answer nor in one that is asked for later."""
        labels = [span[0] for span in journal.spans]
        if not labels:
            return
        newest = self._newest.get(replica_id, -1)
        if labels != sorted(labels) or labels[0] < floor:
            self._findings.wrong("label", f"{replica_id} serves {labels} after {floor}")
        if labels[-1] > newest:
            self._newest[replica_id] = labels[-1]
            if not (self._scene.weights / f"{labels[-1]}.pt").exists():
                self._findings.wrong("label", f"{replica_id} serves {labels[-1]}, made by nobody")
        self._changes.notify()
