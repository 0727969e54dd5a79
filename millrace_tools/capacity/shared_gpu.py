"""A GPU that a rank and an engine's worker use in turn, and what may stay on it between turns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import floor

from millrace_tools.capacity.engine_memory import EngineMemory
from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig
from services.trainer.sizing import held
from services.trainer.sizing.parked import KEPT, kept
from services.trainer.sizing.rank_memory import CONTEXT_GIB, GIB, rank_gib
from services.trainer.sizing.remedies import check_fits
from services.trainer.sizing.training import Training

SLEEPING_GIB = CONTEXT_GIB + 0.7
"""What a sleeping engine leaves on a GPU: CUDA's context, and its graphs and NCCL's buffers, which
are an estimate: vLLM's sleep frees weights and KV cache alone."""


@dataclass(frozen=True, kw_only=True)
class SharedGpu:
    """One GPU in both turns.

    Attributes:
        training: of the rank.
        engine: whose worker takes turns with it.
    """

    training: Training
    engine: EngineMemory

    @property
    def rollout(self) -> RolloutServerConfig:
        """The engine's settings."""
        return self.engine.rollout

    @property
    def gpu_gib(self) -> float:
        """Memory of the GPU."""
        return self.engine.gpu_gib

    @property
    def weights_gib(self) -> float:
        """The engine's weights on this GPU."""
        return self.engine.worker_weights_gib

    def sampling(self, kept_on_gpu: str | None = None) -> dict[str, float]:
        """GiB by name while the engine samples, with the rank's own `kept_on_gpu` or another."""
        utilization = self.rollout.gpu_memory_utilization
        return {
            f"the engine ({utilization:g} x {self.gpu_gib:g})": utilization * self.gpu_gib,
            "the rank's CUDA context": CONTEXT_GIB,
            "the rank's state": kept(self._keeping(kept_on_gpu)) / GIB,
        }

    def beside_rank(self, kept_on_gpu: str | None = None) -> dict[str, float]:
        """GiB by name that the engine holds while the rank trains."""
        stays = (kept_on_gpu or self.rollout.kept_on_gpu) == "weights"
        found = {"the sleeping engine": SLEEPING_GIB}
        return found | ({"its weights": self.weights_gib} if stays else {})

    def training_turn(self, kept_on_gpu: str | None = None) -> dict[str, float]:
        """GiB by name while the rank trains, with the engine's own `kept_on_gpu` or another."""
        return {"the rank": rank_gib(self.training), **self.beside_rank(kept_on_gpu)}

    @property
    def most_gib(self) -> float:
        """The most that the GPU holds in a turn."""
        return max(sum(self.sampling().values()), sum(self.training_turn().values()))

    def utilization(self, limit_gib: float) -> float:
        """The largest `gpu_memory_utilization`, in hundredths, whose sampling turn has this
        limit."""
        left = limit_gib - CONTEXT_GIB - kept(self.training) / GIB
        return max(0.0, floor(100 * left / self.gpu_gib) / 100)

    def figures(self) -> Iterator[tuple[str, str]]:
        """Both turns, and why things stay on the GPU or leave it, a line each."""
        yield "a GPU in a sampling turn", self._sum(self.sampling())
        yield "a GPU in a train turn", self._sum(self.training_turn())
        for name, value, size in self._state():
            yield f"the rank's {name}", self._why(value, size)
        yield "the engine's weights", self._why_weights()
        trainer = [one for one in KEPT if self._samples(one)]
        engine = [one for one in ("none", "weights") if self._trains(one)]
        yield (
            "kept_on_gpu that would fit",
            f"trainer {' or '.join(trainer) or 'no value'}; rollout_server "
            f"{' or '.join(engine) or 'no value'}",
        )

    def check(self) -> None:
        """Refuse a GPU that is too small for a turn.

        Raises:
            InvalidInput: with the figures, and the settings that would make the turn fit.
        """
        leaves = self.rollout.kept_on_gpu == "weights" and self._trains("none")
        check_fits(
            self.training,
            self.gpu_gib,
            beside=self.beside_rank(),
            cheaper=["rollout_server.kept_on_gpu: none"] if leaves else (),
        )
        field, taken = "rollout_server.gpu_memory_utilization", self.rollout.gpu_memory_utilization
        if not self._samples(self.training.trainer.kept_on_gpu):
            fix = f"A sampling turn needs {self._sum(self.sampling())}. {self._smaller()}"
            raise InvalidInput(field, taken, fix)
        if self.engine.kv_tokens < self.rollout.max_model_len:
            fix = (
                f"In a sampling turn the KV cache holds about {self.engine.kv_tokens:,} tokens, "
                f"less than max_model_len {self.rollout.max_model_len:,}. {self._larger()}"
            )
            raise InvalidInput(field, taken, fix)

    def _smaller(self) -> str:
        """Settings with which a sampling turn would fit."""
        kept_now = KEPT.index(self.training.trainer.kept_on_gpu)
        less = [one for one in KEPT[:kept_now] if self._samples(one)]
        ways = [f"trainer.kept_on_gpu: {one}" for one in reversed(less)]
        if self._with(self.utilization(self.gpu_gib)).kv_tokens >= self.rollout.max_model_len:
            ways.append(f"gpu_memory_utilization: {self.utilization(self.gpu_gib):g}")
        ways.append("more tensor_parallel_size")
        return f"Each of these makes it fit, cheapest first: {'; '.join(ways)}."

    def _larger(self) -> str:
        """Settings with which the KV cache would hold a whole answer."""
        ways = []
        if self._with(self.utilization(self.gpu_gib)).kv_tokens >= self.rollout.max_model_len:
            ways.append(f"gpu_memory_utilization: {self.utilization(self.gpu_gib):g}")
        if self.engine.kv_tokens:
            ways.append(f"a max_model_len of at most {self.engine.kv_tokens:,}")
        ways.append("more tensor_parallel_size")
        return f"Each of these helps: {'; '.join(ways)}."

    def _with(self, utilization: float) -> EngineMemory:
        changes = {"gpu_memory_utilization": utilization}
        return replace(self.engine, rollout=self.rollout.model_copy(update=changes))

    def _keeping(self, value: str | None) -> Training:
        if value is None:
            return self.training
        trainer = self.training.trainer.model_copy(update={"kept_on_gpu": value})
        return replace(self.training, trainer=trainer)

    def _samples(self, kept_on_gpu: str) -> bool:
        return sum(self.sampling(kept_on_gpu).values()) <= self.gpu_gib

    def _trains(self, kept_on_gpu: str) -> bool:
        return sum(self.training_turn(kept_on_gpu).values()) <= self.gpu_gib

    def _state(self) -> Iterator[tuple[str, str, float]]:
        """Parts of the rank's state: name, the smallest `kept_on_gpu` that keeps it, bytes."""
        yield "parameters", "parameters", held.parameters(self.training)
        yield "moments", "all", held.moments(self.training)

    def _why(self, value: str, size: float) -> str:
        """Why a part of the rank's state stays or leaves."""
        trainer = self.training.trainer
        if not size:
            return f"are in host memory all the time (offload: {trainer.offload})"
        if KEPT.index(trainer.kept_on_gpu) >= KEPT.index(value):
            return f"{size / GIB:.1f} GiB stay (trainer.kept_on_gpu: {trainer.kept_on_gpu})"
        fate = f"{size / GIB:.1f} GiB wait in host memory while the engine samples: "
        if self._samples(value):
            return f"{fate}trainer.kept_on_gpu: {value} would fit, too, and move less"
        needed = sum(self.sampling(value).values())
        return f"{fate}with kept_on_gpu: {value} a sampling turn needs {self._of(needed)}"

    def _why_weights(self) -> str:
        size = f"{self.weights_gib:.1f} GiB"
        if self.rollout.kept_on_gpu == "weights":
            return f"{size} stay (rollout_server.kept_on_gpu: weights)"
        fate = f"{size} come back from the node's relay for each sampling turn: "
        if self._trains("weights"):
            return f"{fate}rollout_server.kept_on_gpu: weights would fit, too"
        needed = sum(self.training_turn("weights").values())
        return f"{fate}with kept_on_gpu: weights a train turn needs {self._of(needed)}"

    def _sum(self, parts: dict[str, float]) -> str:
        told = " + ".join(f"{size:.1f} of {name}" for name, size in parts.items() if size)
        return f"{told} = {self._of(sum(parts.values()))}"

    def _of(self, needed: float) -> str:
        return f"{needed:.1f} of {self.gpu_gib:g} GiB"
