"""Trainer ranks and rollout servers as Millrace runs them, with the rivals' ways added.

They reach into the services where a rival needs what ours does not: gathered tensors on a
rank, and a load in an engine's worker.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import cloudpickle
import ray

from services.peers import bus_peer
from services.protocol.placement import Node
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import engine_sockets, environment
from services.trainer.batch.rank_batch import RankBatch
from services.trainer.rank.rank import TrainerRank
from services.trainer.rank.rank_messages import RankStep

PROMPT_TOKENS = 16
ANSWER_TOKENS = 128
CHANGE = 1.01
CHECKPOINT = "model.safetensors"
_SETTLE_S = 300.0

T = TypeVar("T")


class Rank(TrainerRank):
    """A trainer rank that also does work of this benchmark in its torch thread."""

    async def do(self, work: Callable[..., T], *args: Any) -> T:
        """Call one of the functions below on this rank."""
        return await self._in_torch(lambda: work(self, *args))


def change(rank: Rank, share: float, seed: int) -> None:
    """Scale a random `share` of this rank's elements, all others stay bit for bit."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    policy = rank._loaded()._policy
    policy.reshard_all()
    with torch.no_grad():
        for _, parameter in policy.checkpoint_parameters():
            flat = parameter.to_local().view(-1)
            count = int(flat.numel() * share)
            index = torch.randint(max(flat.numel(), 1), (count,), generator=draw)
            flat[index] *= CHANGE


def gather(rank: Rank) -> dict[str, Any]:
    """All full tensors on rank 0 as numpy arrays, which need no copy in the object store."""
    return {name: one.numpy() for name, one in _full_tensors(rank).items()}


def write(rank: Rank, folder: str) -> None:
    """Write all full tensors as one safetensors file, on rank 0; not forced to disk."""
    from safetensors.torch import save_file

    if full := _full_tensors(rank):
        save_file(full, Path(folder) / CHECKPOINT)


def _full_tensors(rank: Rank) -> dict[str, Any]:
    """Collective: every rank gathers, rank 0 keeps."""
    policy, full = rank._loaded()._policy, {}
    policy.reshard_all()
    for name, parameter in policy.checkpoint_parameters():
        tensor = parameter.full_tensor().detach()
        if rank._rank == 0:
            full[name] = tensor
    return full


def delta_bytes(rank: Rank, version: int) -> int:
    """Payload bytes of this rank for a receiver that holds the version before."""
    source = rank._loaded().snapshots.source(version)
    assert source is not None, "the newest version is in the store"
    buckets = range(source.bucket_count)
    return sum(source.encoded(bucket, version - 1).payload.numel() for bucket in buckets)


def timed_train(rank: Rank, parts: Sequence[RankBatch], version: int) -> tuple[RankStep, float]:
    """A train step with its snapshot, and the CPU seconds of the thread that did both."""
    began = time.thread_time()
    step = rank._loaded().train(parts[rank._rank], 0, version)
    return step, time.thread_time() - began


class Replica:
    """A rollout server outside Serve, and answers under way that notice every pause."""

    async def start(self, config: RolloutServerConfig, number: int) -> None:
        """Start engine, HTTP server and bus membership; see `RolloutReplica`."""
        os.environ.update(environment(config))
        from services.rollout_server.replica import RolloutReplica  # after the environment

        self._replica = RolloutReplica(
            config,
            replica_id=f"replica{number}",
            node=Node(
                ip=ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
                ray_id=ray.get_runtime_context().get_node_id(),
            ),
            bus=bus_peer(),
            on_end=lambda: os._exit(1),
        )
        with engine_sockets():
            await self._replica.start()
        self._engine: Any = self._replica._engine
        await self.in_worker(remember_loads)
        self._numbers = itertools.count()
        self._answers: list[asyncio.Task[None]] = []
        self._arrivals: list[list[float]] = []

    async def stop(self) -> None:
        """End everything in good order."""
        await self.end_answers()
        await self._replica.stop()

    async def load(self, work: Callable[..., Any], *args: Any) -> None:
        """Call one of the functions below in the engine's worker while nothing is sampled."""
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        try:
            await self.in_worker(work, *args)
        finally:
            await self._engine.resume_generation()

    async def in_worker(self, work: Callable[..., T], *args: Any) -> T:
        """Call one of the functions below in the engine's worker."""
        call = cloudpickle.dumps(lambda worker: work(worker, *args))  # arguments may be arrays
        (result,) = await self._engine.collective_rpc(call)
        return cast(T, result)

    async def pause_only(self) -> None:
        """Stop and go on, with the KV cache recomputed, as a commit does, but load nothing."""
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        await self._engine.resume_generation()

    async def logprobs(self, sequence: list[int]) -> list[float]:
        """Logprobs of tokens 1.. under the weights that are served."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        prompt = {"prompt_token_ids": sequence}
        request = f"check-{next(self._numbers)}"
        async for output in self._engine.generate(prompt, sampling, request):
            last = output
        entries = zip(sequence[1:], last.prompt_logprobs[1:], strict=True)
        return [entry[token].logprob for token, entry in entries]

    async def begin_answers(
        self, lengths: Sequence[int], prompt_tokens: int = PROMPT_TOKENS
    ) -> None:
        """Have one answer of each length, tokens, under way at any time; returns once all are."""
        self._arrivals = [[] for _ in lengths]
        self._answers = [
            asyncio.create_task(self._answer(one, prompt_tokens, length))
            for one, length in zip(self._arrivals, lengths, strict=True)
        ]
        await self._until(lambda: all(self._arrivals))

    async def end_answers(self) -> None:
        """Cancel the answers under way."""
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)
        self._answers = []

    async def largest_gap(self, start: float, end: float) -> float:
        """The longest time between two tokens of an answer that reaches into the window.

        Args:
            start: by the machine's monotonic clock, which all processes share.
            end: as `start`.
        """
        await self._until(lambda: all(one[-1] > end for one in self._arrivals))
        return max(
            later - earlier
            for one in self._arrivals
            for earlier, later in itertools.pairwise(one)
            if later > start and earlier < end
        )

    async def tokens(self, start: float, end: float) -> int:
        """Tokens of all answers between two times of the machine's monotonic clock."""
        return sum(start < at <= end for one in self._arrivals for at in one)

    async def next_tokens(self) -> float:
        """Wait for a new token of every answer; returns when the last came."""
        began = time.monotonic()
        await self._until(lambda: all(one[-1] > began for one in self._arrivals))
        return max(next(at for at in one if at > began) for one in self._arrivals)

    async def _answer(self, arrivals: list[float], prompt_tokens: int, answer_tokens: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=answer_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        while True:
            number = next(self._numbers)
            ids = [3 + (number + position) % 200 for position in range(prompt_tokens)]
            prompt = {"prompt_token_ids": ids}
            async for _ in self._engine.generate(prompt, sampling, f"answer-{number}"):
                arrivals.append(time.monotonic())

    async def _until(self, holds: Any) -> None:
        async with asyncio.timeout(_SETTLE_S):
            while not holds():
                for task in self._answers:
                    if task.done():
                        await task
                await asyncio.sleep(0.005)


def load_arrays(worker: Any, arrays: dict[str, Any]) -> None:
    """Load tensors that came through the object store."""
    import torch

    _load(worker, ((name, torch.from_numpy(one)) for name, one in arrays.items()))


def load_checkpoint(worker: Any, folder: str) -> None:
    """Load a safetensors file."""
    from safetensors.torch import load_file

    _load(worker, iter(load_file(Path(folder) / CHECKPOINT).items()))


def remember_loads(worker: Any) -> None:
    """From now on keep the version that was loaded last, for `load_again`."""
    loader = worker.weight_transfer_engine
    finish = loader.finish_weight_update

    def finish_and_remember() -> None:
        loader.loaded_last = loader._staged
        finish()

    loader.finish_weight_update = finish_and_remember


def load_again(worker: Any) -> float:
    """Load what was loaded last, where it lies; returns the seconds of the load itself."""
    from services.rollout_server.engine.vllm_patches.loading import load_plan

    loader = worker.weight_transfer_engine
    began = time.perf_counter()
    load_plan.load(loader.model, loader.model_config, loader.loaded_last, loader._plan)
    return time.perf_counter() - began


def _load(worker: Any, tensors: Any) -> None:
    """The load of the rivals' ways, and of a version for which there is no plan yet."""
    from services.rollout_server.engine.vllm_patches.loading import layerwise_load

    receiver = worker.weight_transfer_engine
    layerwise_load.load(receiver.model, receiver.model_config, tensors)
