"""A tiny model, batches, and rank processes that live as long as the test session."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.protocol.trainer import RunStart
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.config import TrainerConfig
from services.trainer.lead.device_turn import DeviceTurn
from services.trainer.rank.rank_messages import report_of
from tests.batches import GroupBatch

VOCABULARY = 320
ANSWER_S = 300.0
LOST_S = 5.0
IMPORTED_S = 240.0
"""To import torch and transformers takes seconds, and over a minute on a machine that is busy."""


def own_devices(config: TrainerConfig) -> DeviceTurn:
    """Of ranks that share no devices, so that they ask no bus."""
    return DeviceTurn(config, bus=None)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make_model(tmp_path_factory.mktemp("tiny"), tied=False)


@pytest.fixture(scope="session")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make_model(tmp_path_factory.mktemp("tied"), tied=True)


def _make_model(folder: Path, *, tied: bool) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.1,  # large enough that attention and order of tokens matter
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    return _make_trajectory


def _make_trajectory(
    prompt: list[int],
    response: list[int],
    logprobs: list[float] | None = None,
    *,
    mask: list[int] | None = None,
    spans: list[tuple[int, int, int]] | None = None,
) -> Trajectory:
    """Spans are (version, start, end); version 0 throughout by default."""
    length = len(response)
    parts = spans or [(0, 0, length)]
    return Trajectory(
        prompt_token_ids=tuple(prompt),
        response_token_ids=tuple(response),
        behaviour_logprobs=tuple(logprobs or [-1.0] * length),
        loss_mask=tuple(mask or [1] * length),
        spans=tuple(
            PolicySpan(version=v, start=s, end=e, replica_id="replica") for v, s, e in parts
        ),
        finish_reason="stop",
        text="",
    )


@pytest.fixture
def make_batch() -> Callable[..., GroupBatch]:
    return _make_batch


def _make_batch(
    step: int = 1,
    *,
    groups: int = 6,
    group_size: int = 4,
    seed: int = 0,
    rewards: Callable[[random.Random], float] | None = None,
    run_id: str = "run",
    vocabulary: int = VOCABULARY,
) -> GroupBatch:
    """Uneven lengths, a masked token here and there, behaviour logprobs near uniform."""
    draw = random.Random(f"{seed}/{step}")
    made = []
    for group_id in range(groups):
        prompt = [draw.randrange(vocabulary) for _ in range(draw.randint(1, 12))]
        members = []
        for _ in range(group_size):
            response = [draw.randrange(vocabulary) for _ in range(draw.randint(1, 24))]
            trajectory = _make_trajectory(
                prompt,
                response,
                [draw.gauss(-5.8, 0.5) for _ in response],
                mask=[1] + [int(draw.random() < 0.9) for _ in response[1:]],
            )
            reward = rewards(draw) if rewards else draw.random()
            members.append(ScoredTrajectory(trajectory=trajectory, reward=reward))
        made.append(TrainGroup(group_id=group_id, trajectories=tuple(members)))
    return GroupBatch(run_id=run_id, step=step, groups=tuple(made))


@pytest.fixture
def make_start(tmp_path: Path) -> Callable[..., RunStart]:
    def make(
        checkpoints: str = "checkpoints", temperature: float = 1.0, **algorithm: Any
    ) -> RunStart:
        # Tests compare with the papers' own clip, and random logprobs are far apart. AdamW's own
        # epsilon makes whole steps of the rounding of a gradient of nearly zero.
        settings = {"learning_rate": 1e-3, "dual_clip": None, "epsilon": 1e-4} | algorithm
        return RunStart(
            run_id="run",
            checkpoint_dir=str(tmp_path / checkpoints),
            algorithm=AlgorithmConfig(**settings),
            temperature=temperature,
            seed=5,
        )

    return make


class RankForks:
    """A process that has imported what ranks need, and forks them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._listen("forks") as listener:
            script = Path(__file__).with_name("rank_process.py")
            command = [sys.executable, str(script), listener.address]
            # An engine in this process may have set it, and ranks that inherit it compile nothing.
            env = {key: one for key, one in os.environ.items() if key != "TORCHDYNAMO_DISABLE"}
            self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=env)
            listener._listener._socket.settimeout(IMPORTED_S)
            self._connection = listener.accept()

    def rank(self, world_size: int, rank: int) -> tuple[Connection, int]:
        """A connection to a new rank, and its process id."""
        with self._listen(f"{world_size}-{rank}") as listener:
            self._connection.send(("fork", listener.address, rank))
            return listener.accept(), self._answer()

    def ended(self, process_id: int, patience_s: float) -> int:
        """The exit code of a rank, which is killed if it does not end in time."""
        self._connection.send(("end", process_id, patience_s))
        return self._answer()

    def _answer(self) -> int:
        assert self._connection.poll(ANSWER_S), "the process that forks ranks did not answer"
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()
        self._process.wait(timeout=ANSWER_S)

    def _listen(self, name: str) -> Any:
        listener: Any = Listener(str(self._folder / name), "AF_UNIX")
        listener._listener._socket.settimeout(ANSWER_S)  # accept() has no deadline
        return listener


class RankEnded(Exception):
    """A rank's process ended before it answered."""


class Ranks:
    """Rank processes that do together what they are told; answers come in rank order."""

    def __init__(self, world_size: int, forks: RankForks) -> None:
        self.world_size = world_size
        self._forks = forks
        self._tiny: Path | None = None
        self._model: Any = None
        self._context_parallel = 1
        self._start: Any = None
        self._ranks: list[tuple[Connection, int]] = []
        self._ended: dict[int, int] = {}  # exit codes of ranks that ended before they were told to

    def config(self, model: Path, **settings: Any) -> TrainerConfig:
        return TrainerConfig(model=str(model), world_size=self.world_size, **settings)

    def meet(self, model: Path) -> None:
        self._tiny, self._ended = model, {}
        self._ranks = [self._forks.rank(self.world_size, rank) for rank in range(self.world_size)]
        self._send(0, "meet", ())
        port = self._result(*self._receive(0))
        self.call("join", self.config(model), port)

    def call(self, method: str, *args: Any) -> list[Any]:
        if method == "start_run":
            self._start = args[0]
        if method == "train":
            return self._train(*args)
        return self._call(method, [args] * self.world_size)

    def _train(self, batch: GroupBatch, *versions: int) -> list[Any]:
        """Plan as the process does that leads the ranks, and add to answers what it adds."""
        plan = self._model.plan(batch.built, self._start)
        steps = self._call(
            "train",
            [(plan.part(i // self._context_parallel), *versions) for i in range(self.world_size)],
        )
        whole = report_of(steps, plan, total_s=0.0)
        # How fast a step was, and what saved time, is no result of it.
        speed = ("model_tflops", "shared_prefix_fraction")
        metrics = {key: one for key, one in whole.metrics.items() if key not in speed}
        told = {"metrics": metrics, "advantages": whole.advantages}
        return [replace(step, **told) for step in steps]

    def _call(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        for rank, own in enumerate(args):
            self._send(rank, method, own)
        answers = [self._receive(rank) for rank in range(self.world_size)]
        return [self._result(*answer) for answer in answers]

    def errors(self, method: str, *args: Any) -> list[Any]:
        """What each rank raises, or answers if it does not raise."""
        for rank in range(self.world_size):
            self._send(rank, method, args)
        return [self._receive(rank)[1] for rank in range(self.world_size)]

    def load(self, model: Path, **settings: Any) -> Any:
        """The model as it was loaded; by new ranks if one has ended since the last test."""
        if self._ended:
            self.close()
            self.meet(self._tiny or model)
        config = self.config(model, **settings)
        self._model = self.call("load", config)[0]
        self._context_parallel = config.context_parallel
        return self._model

    def close(self) -> None:
        with suppress(RankEnded):
            for rank in range(len(self._ranks)):
                self._send(rank, "stop", ())
        patience_s = LOST_S if self._ended else ANSWER_S
        codes = [
            self._forks.ended(process_id, patience_s)
            for rank, (_, process_id) in enumerate(self._ranks)
            if rank not in self._ended
        ]
        for connection, _ in self._ranks:
            connection.close()
        self._ranks = []
        assert self._ended or not any(codes), f"ranks ended with {codes}"

    def _send(self, rank: int, method: str, args: tuple[Any, ...]) -> None:
        with self._known_end(rank):
            self._ranks[rank][0].send((method, args))

    def _receive(self, rank: int) -> tuple[bool, Any]:
        with self._known_end(rank):
            assert self._ranks[rank][0].poll(ANSWER_S), "a rank did not answer"
            return self._ranks[rank][0].recv()

    @contextmanager
    def _known_end(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:
            if rank not in self._ended:
                self._ended[rank] = self._forks.ended(self._ranks[rank][1], LOST_S)
            message = f"rank {rank} of {self.world_size} ended with {self._ended[rank]}"
            raise RankEnded(message) from error

    def _result(self, done: bool, result: Any) -> Any:
        if not done:
            raise result
        return result


@pytest.fixture(scope="session")
def rank_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankForks]:
    forks = RankForks(tmp_path_factory.mktemp("r"))
    try:
        yield forks
    finally:
        forks.close()


@pytest.fixture(scope="session")
def rank_groups(tiny_model: Path, rank_forks: RankForks) -> Iterator[dict[int, Ranks]]:
    """A group of one rank and a group of two, by world size."""
    with together(tiny_model, rank_forks, 1) as one, together(tiny_model, rank_forks, 2) as two:
        yield {1: one, 2: two}


@pytest.fixture(scope="session")
def four_ranks(tiny_model: Path, rank_forks: RankForks) -> Iterator[Ranks]:
    with together(tiny_model, rank_forks, 4) as four:
        yield four


@contextmanager
def together(model: Path, forks: RankForks, world_size: int) -> Iterator[Ranks]:
    ranks = Ranks(world_size, forks)
    try:
        ranks.meet(model)
        yield ranks
    finally:
        ranks.close()
