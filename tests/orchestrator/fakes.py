"""Peers of a run in one process: the router is a real HTTP server, the others are objects."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_tools.run.run_view import tokens_text
from services.ledger.ledger import ledger_of
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.context import Peers
from services.orchestrator.lifecycle.runs import Runs
from services.page.reading.comparison.run_figures import read_figures
from services.page.reading.run_folder import RunFolder
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.protocol.router import RouterLoad
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunStatus
from services.protocol.run.profile import ProfileRequest
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import (
    CheckpointReport,
    LedgerFrontier,
    RunStart,
    TrainerState,
    TrainReport,
)
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState, WeightBus
from tests.batches import GroupBatch, opened
from tests.orchestrator.fake_sessions import FakeSessions


def score(job: ScoreJob, reward: float | None) -> Score:
    if reward is None:
        return Score.ungraded("", job_id=job.job_id)
    return Score(
        job_id=job.job_id,
        verdict=Verdict.ACCEPTED if reward == 1.0 else Verdict.WRONG_ANSWER,
        reward=reward,
        passed=int(reward or 0),
        total=1,
        seconds=0.001,
        cpu_s=0.001,
        detail="",
        cached=False,
    )


class FakeBus:
    """Replicas commit a published version at once unless `commit_delay_s` says otherwise."""

    def __init__(self, replicas: int = 2, commit_delay_s: float = 0.0) -> None:
        self.committed: dict[str, int | None] = {f"replica-{i}": None for i in range(replicas)}
        self.newest: int | None = None
        self.max_lag: int | None = None
        self.lags: list[int | None] = []
        self.pushes = 0
        self.revision = 1
        self.commit_delay_s = commit_delay_s
        self.wanted: int | None = None
        self._changed = asyncio.Event()
        self._commits: set[asyncio.Task[None]] = set()

    def leased(self) -> list[str]:
        return [name for name, version in self.committed.items() if self._may_serve(version)]

    def _may_serve(self, version: int | None) -> bool:
        if version is None or self.newest is None:
            return False
        return self.max_lag is None or self.newest - version <= self.max_lag

    def publish_version(self, version: int) -> None:
        assert self.newest is None or version > self.newest
        self.newest = version
        self._notify()
        for place, name in enumerate(self.committed):
            commit = asyncio.create_task(self._commit(name, version, place))
            self._commits.add(commit)
            commit.add_done_callback(self._commits.discard)

    async def _commit(self, name: str, version: int, place: int) -> None:
        await asyncio.sleep(self.commit_delay_s * place)
        self.committed[name] = max(version, self.committed[name] or 0)
        self.pushes += 1
        self._notify()

    def _notify(self) -> None:
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        if revision >= self.revision:
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({changed}, timeout=wait_s)
            changed.cancel()
        return MemberTable(
            bus_id="b",
            revision=self.revision,
            newest_version=self.newest,
            lease_s=10.0,
            members=tuple(self._member(name) for name in self.committed),
            trainer_ready=True,
            pushes=self.pushes,
        )

    def _member(self, name: str) -> Member:
        version = self.committed[name]
        return Member(
            replica_id=name,
            address="http://127.0.0.1:1",
            state=ReplicaState.JOINING if version is None else ReplicaState.LIVE,
            committed_version=version,
            leased=self._may_serve(version),
            model="tiny",
            aliases=("small",),
            max_model_len=4096,
            pid=1,
        )

    async def bound_lag(self, max_lag: int | None) -> None:
        self.max_lag = max_lag
        self.lags.append(max_lag)
        self._notify()

    async def versions(self) -> tuple[VersionRecord, ...]:
        return ()

    async def want_replicas(self, replicas: int) -> None:
        self.wanted = replicas


class FakeTrainer:
    """Weights are a digest of everything trained so far; checkpoints keep it."""

    def __init__(self, bus: FakeBus) -> None:
        self.bus = bus
        self.ready = True
        self.step = 0
        self.version: int | None = None
        self.weights = "initial"
        self.checkpoints: dict[str, list[tuple[int, str]]] = {}
        self.batches: list[tuple[int, GroupBatch]] = []
        self.frontiers: dict[tuple[str, int], LedgerFrontier | None] = {}
        self.frontier: LedgerFrontier | None = None
        self.die_before: set[int] = set()
        self.die_after: set[int] = set()
        self.train_s = 0.0
        self.starts: list[RunStart] = []
        self.profiles: list[ProfileRequest] = []
        self.shares_devices = False
        self.turns: list[str] = []
        self.lenders_away = 0  # turns that engines do not make room for
        self.entered = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def start_run(self, start: RunStart) -> TrainerState:
        self.starts.append(start)
        saved = self.checkpoints.get(start.checkpoint_dir, [(0, f"seed {start.seed}")])
        self.step, self.weights = saved[-1]
        self.frontier = self.frontiers.get((start.checkpoint_dir, self.step))
        self.run_id = start.run_id
        self._publish()
        return await self.state()

    def _saved_step(self) -> int:
        saved = self.checkpoints.get(self.starts[-1].checkpoint_dir, [(0, "")])
        return saved[-1][0]

    def _publish(self) -> None:
        self.version = 1 if self.bus.newest is None else self.bus.newest + 1
        self.bus.publish_version(self.version)

    async def train(self, sent: TrainBatch) -> TrainReport:
        batch = opened(sent)
        if batch.step != self.step + 1:
            raise InvalidInput("step", batch.step, f"The next step is {self.step + 1}.")
        self.entered.set()
        if self.hold is not None:
            await self.hold.wait()
        if batch.step in self.die_before:
            self.die_before.discard(batch.step)
            raise self.death()
        await asyncio.sleep(self.train_s)
        assert self.version is not None
        self.batches.append((self.version, batch))
        self.weights = hashlib.sha256((self.weights + numbers(batch)).encode()).hexdigest()
        self.step = batch.step
        self._publish()
        if batch.step in self.die_after:
            self.die_after.discard(batch.step)
            raise self.death()
        return TrainReport(
            step=self.step,
            policy_version=self.version,
            tokens=sum(len(t.trajectory.response_token_ids) for t in trajectories(batch)),
            metrics={"loss": 0.5},
            seconds={"total": 0.0},
            checkpoint=CheckpointReport(saved_step=self._saved_step()),
        )

    def death(self) -> NotReady:
        """The ranks die, and are back a moment later with nothing in memory."""
        self.ready = False
        self.step = -1
        asyncio.get_running_loop().call_later(0.05, setattr, self, "ready", True)
        return NotReady("a rank died")

    async def save(
        self, run_id: str, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        if not self.ready:
            raise NotReady("ranks restart")
        start = next(start for start in reversed(self.starts) if start.run_id == run_id)
        saved = self.checkpoints.setdefault(start.checkpoint_dir, [])
        saved.append((self.step, self.weights))
        self.frontiers[start.checkpoint_dir, self.step] = frontier
        return CheckpointReport(saved_step=self.step)

    async def begin_turn(self) -> None:
        self.turns.append(f"begin before {self.step + 1}")
        if self.lenders_away:
            self.lenders_away -= 1
            raise NotReady("rollout servers have not freed their devices")

    async def end_turn(self) -> None:
        self.turns.append(f"end behind {self.step}")

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        raise NotImplementedError

    async def profile(self, request: ProfileRequest) -> None:
        if max(request.ranks) > 1:
            raise InvalidInput("ranks", max(request.ranks), "The trainer has ranks 0 to 1.")
        self.profiles.append(request)

    async def state(self) -> TrainerState:
        return TrainerState(
            ready=self.ready,
            run_id=self.starts[-1].run_id if self.starts else None,
            step=self.step,
            policy_version=self.version,
            world_size=2,
            row_groups=2,
            parameters=1,
            frontier=self.frontier,
            shares_devices=self.shares_devices,
        )


def trajectories(batch: GroupBatch) -> list[Any]:
    return [one for group in batch.groups for one in group.trajectories]


def numbers(batch: GroupBatch) -> str:
    """Everything that an update would be computed from."""
    return json.dumps(
        [
            [one.trajectory.response_token_ids, one.trajectory.behaviour_logprobs, one.reward]
            for one in trajectories(batch)
        ]
    )


async def no_load(config: OrchestratorConfig) -> RouterLoad | None:
    """A router that does not say how full the replicas are."""
    return None


class FakeReward:
    """An answer that begins with `good` is right."""

    def __init__(self) -> None:
        self.calls: list[list[ScoreJob]] = []
        self.ungraded: Callable[[ScoreJob], bool] = lambda job: False
        self.named: Callable[[str], dict[str, float]] = lambda completion: {}
        self.not_ready = 0

    async def sandboxes(self) -> int:
        return 1

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        if self.not_ready:
            self.not_ready -= 1
            raise NotReady("restarting")
        self.calls.append(jobs)
        await asyncio.sleep(0)
        return [
            replace(
                score(
                    job, None if self.ungraded(job) else float(job.completion.startswith("good"))
                ),
                rewards=self.named(job.completion),
            )
            for job in jobs
        ]


@dataclass
class Asked:
    """A request as the router got it."""

    body: dict[str, Any]
    session: str
    headers: dict[str, str] = field(default_factory=dict)


Answer = Callable[["FakeRouter", Asked, web.StreamResponse], Awaitable[bool]]


@dataclass
class FakeRouter:
    """Speaks the router's streaming format; tokens depend on seed, prompt and version only.

    `before` may answer a request itself by returning a response, or wait.
    """

    bus: FakeBus
    asked: list[Asked] = field(default_factory=list)
    before: Callable[[Asked], Awaitable[web.Response | None]] | None = None
    cut_after: Callable[[Asked], int | None] = lambda asked: None
    answers: Callable[[Asked, int, Any], bool] | None = None
    sampled: int = 0
    hold: Callable[[Asked, int], Awaitable[None]] | None = None
    delay: Callable[[Asked, int], float] = lambda asked, index: 0.0
    moves: Callable[[Asked, int], bool] = lambda asked, index: False
    sessions: FakeSessions | None = None
    floors: dict[str, int] = field(default_factory=dict)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    load: RouterLoad | None = None

    async def full(self, request: web.Request) -> web.Response:
        if self.load is None:
            return web.Response(status=404)
        return web.json_response(self.load.model_dump())

    async def interrupt(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        assert request.headers["x-session-id"] == name
        self.floors[name] = body["min_version"]
        self.interrupted.set()
        return web.json_response({"id": name, "object": "session.interrupted", "stopped": 1})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(await request.json(), headers["x-session-id"], headers)
        self.asked.append(asked)
        if self.sessions is not None and self.sessions.has(asked.session):
            return self.sessions.answer(asked.session, asked.body)
        if self.before is not None:
            refused = await self.before(asked)
            if refused is not None:
                return refused
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        cut = self.cut_after(asked)
        choices = [
            asyncio.create_task(self._choice(asked, index)) for index in range(asked.body["n"])
        ]
        for sent, done in enumerate(asyncio.as_completed(choices)):
            event = await done
            if cut is not None and sent >= cut:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _choice(self, asked: Asked, index: int) -> dict[str, Any]:
        while not self.bus.leased():
            await self.bus.watch(self.bus.revision, 1.0)
        name = self.bus.leased()[index % len(self.bus.leased())]
        first = self.bus.committed[name]
        await asyncio.sleep(self.delay(asked, index))
        if self.hold is not None:
            await self.hold(asked, index)
        while (self.bus.committed[name] or 0) < self.floors.get(asked.session, 0):
            await self.bus.watch(self.bus.revision, 1.0)
        last = self.bus.committed[name]
        self.sampled += asked.body["n"] > 1
        seed = (asked.body["seed"], json.dumps(asked.body["messages"]), index, first)
        chance = random.Random(repr(seed))
        tokens = [chance.randrange(1000) for _ in range(chance.randint(2, 9))]
        good = chance.random() < 0.5
        if self.answers is not None:
            good = self.answers(asked, index, first)
        spans = [[first, 0, 1, name], [last, 1, len(tokens), name]]
        if self.moves(asked, index):
            spans[1][3] = "another"
        elif first == last:
            spans = [[first, 0, len(tokens), name]]
        return {
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": "good" if good else "bad"},
                    "finish_reason": "stop",
                    "trajectory": {
                        "prompt_token_ids": [1, 2, 3],
                        "token_ids": tokens,
                        "logprobs": [-chance.random() for _ in tokens],
                        "spans": spans,
                    },
                }
            ]
        }


def evaluation(**changes: Any) -> Evaluation:
    fields: dict[str, Any] = {
        "name": "heldout",
        "step": 0,
        "tasks": 3,
        "samples": 1,
        "temperature": 0.0,
        "graded": 3,
        "answers": 3,
        "pass_at": {1: 1.0},
        "reward": 1.0,
        "oldest_version": 1,
        "newest_version": 1,
        "tokens": 9,
        "seconds": 0.1,
    }
    return Evaluation(**(fields | changes))


@dataclass
class World:
    """A whole cluster in one process."""

    bus: FakeBus
    trainer: FakeTrainer
    reward: FakeReward
    router: FakeRouter
    config: OrchestratorConfig
    task_file: Path
    run_root: Path

    @property
    def peers(self) -> Peers:
        return Peers(trainer=self.trainer, reward=self.reward, bus=cast(WeightBus, self.bus))

    def run_config(self, **changes: Any) -> RunConfig:
        fields: dict[str, Any] = {
            "name": "test",
            "task_file": str(self.task_file),
            "run_root": str(self.run_root),
            "model": "tiny",
            "steps": 5,
            "batch_groups": 4,
            "group_size": 4,
            # A busy machine takes longer than that to start an environment's process.
            "rollout_timeout_s": 60.0 if "environment" in changes else 5.0,
            "checkpoint": {"every": 2},
        }
        return RunConfig.model_validate(fields | changes)


def write_tasks(path: Path, *, train: int = 24, heldout: int = 5) -> Path:
    rows = [
        {
            "task_id": f"{split}-{i}",
            "messages": [{"role": "user", "content": f"{split} {i}"}],
            "split": split,
            "grader": {
                "kind": "python_function",
                "entry_point": "f",
                "tests": [{"args": [1], "expected": 1}],
            },
        }
        for split, count in (("train", train), ("heldout", heldout))
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@asynccontextmanager
async def world(
    folder: Path,
    *,
    replicas: int = 2,
    commit_delay_s: float = 0.0,
    more_routes: Callable[[web.Application], None] = lambda _: None,
    **changes: Any,
) -> AsyncIterator[World]:
    """A cluster with a router on a free port."""
    bus = FakeBus(replicas, commit_delay_s)
    router = FakeRouter(bus)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", router.chat)
    app.router.add_post("/v1/sessions/{name}/interrupt", router.interrupt)
    app.router.add_get("/v1/load", router.full)
    sessions = FakeSessions(bus)
    sessions.add_to(app)
    more_routes(app)
    router.sessions = sessions
    server = TestServer(app)
    await server.start_server()
    settings = {"backoff_s": 0.01, "backoff_max_s": 0.05, "replicas_timeout_s": 10.0}
    try:
        yield World(
            bus=bus,
            trainer=FakeTrainer(bus),
            reward=FakeReward(),
            router=router,
            config=OrchestratorConfig.model_validate(
                settings | {"router_url": f"http://127.0.0.1:{server.port}"} | changes
            ),
            task_file=write_tasks(folder / "tasks.jsonl"),
            run_root=folder / "runs",
        )
    finally:
        await server.close()


async def run_to_end(cluster: World, config: RunConfig, *, resume: str | None = None) -> RunStatus:
    """Start a run and wait for its end."""
    runs = Runs(cluster.config, lambda: cluster.peers)
    status = await runs.start(RunRequest(config=config, resume=resume))
    async with asyncio.timeout(600):
        ended = await runs.ended(status.run_id)
    assert_tokens_agree(ended)
    return ended


def assert_tokens_agree(status: RunStatus) -> None:
    """Status, summary, ledger and page show the same figures of tokens."""
    if status.summary is None:
        return  # it never began, or its disk was full
    with ledger_of(status.run_dir) as ledger:
        written = ledger.token_counts().admitted, ledger.tokens_evaluated()
    flow = RunFolder.open(status.run_dir).overview()["flow"]
    assert written == (flow["tokens"]["admitted"], flow["tokens_evaluated"])
    assert written == (status.tokens_sampled, status.tokens_evaluated)
    assert written == (status.summary.tokens_sampled, status.summary.tokens_evaluated)
    assert tokens_text(status) == tokens_text(status.summary)
    assert read_figures(Path(status.run_dir), status.run_id).tokens_sampled == written[0]


def metric_lines(status: RunStatus) -> list[dict[str, Any]]:
    text = (Path(status.run_dir) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
