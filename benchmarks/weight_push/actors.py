"""Trainer ranks and rollout servers as Millrace runs them, with the rivals' ways added.

They reach into the services where a rival needs what ours does not: gathered tensors on a
rank, and a load in an engine's worker.
"""

import asyncio
import itertools
import os
import pickle
import time
from pathlib import Path
from typing import Any

import cloudpickle
import ray

from services.peers import bus_peer
from services.protocol.trainer import TrainBatch
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import engine_sockets, environment
from services.trainer.rank.rank import TrainerRank
from services.trainer.rank.rank_messages import RankStep

PROMPT_TOKENS = 16
ANSWER_TOKENS = 128
CHANGE = 1.01
CHECKPOINT = "model.safetensors"
_SETTLE_S = 30.0


class Rank(TrainerRank):
    """A trainer rank that can also gather, and change its weights without a train step."""

    async def change(self, share: float, seed: int) -> None:
        """Scale a random `share` of this rank's elements, all others stay bit for bit."""
        await self._in_torch(lambda: self._change(share, seed))

    async def gather(self) -> dict[str, Any] | None:
        """All full tensors as numpy arrays of bytes and their shapes, on rank 0."""
        return await self._in_torch(lambda: _as_arrays(self._full_tensors()))

    async def write(self, folder: str) -> None:
        """Write all full tensors as one safetensors file, on rank 0; not forced to disk."""
        await self._in_torch(lambda: self._write(Path(folder)))

    async def delta_bytes(self, version: int) -> int:
        """Payload bytes of this rank for a receiver that holds the version before."""
        source = self._loaded().snapshots.source(version)
        assert source is not None, "the newest version is in the store"
        sizes = [
            source.encoded(bucket, version - 1).payload.numel()
            for bucket in range(source.bucket_count)
        ]
        return sum(sizes)

    async def timed_train(
        self, batch: TrainBatch, held: int, version: int
    ) -> tuple[RankStep, float]:
        """A train step with its snapshot, and the CPU seconds of the thread that did both."""
        return await self._in_torch(lambda: self._timed_train(batch, held, version))

    def _timed_train(self, batch: TrainBatch, held: int, version: int) -> tuple[RankStep, float]:
        began = time.thread_time()
        step = self._loaded().train(batch, held, version)
        return step, time.thread_time() - began

    def _change(self, share: float, seed: int) -> None:
        import torch

        draw = torch.Generator().manual_seed(seed)
        policy = self._loaded()._policy
        policy.reshard_all()
        with torch.no_grad():
            for _, parameter in policy.checkpoint_parameters():
                flat = parameter.to_local().view(-1)
                count = int(flat.numel() * share)
                index = torch.randint(max(flat.numel(), 1), (count,), generator=draw)
                flat[index] *= CHANGE

    def _full_tensors(self) -> dict[str, Any]:
        """Collective: every rank gathers, rank 0 keeps."""
        import torch

        dtype = getattr(torch, self._config.dtype)
        policy, full = self._loaded()._policy, {}
        policy.reshard_all()
        for name, parameter in policy.checkpoint_parameters():
            tensor = parameter.full_tensor().detach()
            if self._rank == 0:
                full[name] = tensor.to(dtype)
        return full

    def _write(self, folder: Path) -> None:
        from safetensors.torch import save_file

        full = self._full_tensors()
        if self._rank == 0:
            save_file(full, folder / CHECKPOINT)


class Replica:
    """A rollout server outside Serve, and answers under way that notice every pause."""

    async def start(self, config: RolloutServerConfig, number: int) -> None:
        """Start engine, HTTP server and bus membership; see `RolloutReplica`."""
        os.environ.update(environment(config))
        from services.rollout_server.replica import RolloutReplica  # after the environment

        self._replica = RolloutReplica(
            config,
            replica_id=f"replica{number}",
            node_ip=ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
            bus=bus_peer(),
            on_end=lambda: os._exit(1),
        )
        with engine_sockets():
            await self._replica.start()
        self._engine: Any = self._replica._engine
        self._numbers = itertools.count()
        self._answers: list[asyncio.Task[None]] = []
        self._arrivals: list[list[float]] = []

    async def stop(self) -> None:
        """End everything in good order."""
        await self.end_answers()
        await self._replica.stop()

    async def load_arrays(self, arrays: dict[str, Any]) -> None:
        """Load what came through the object store."""
        blob = pickle.dumps(arrays, protocol=5)
        await self._stopped(_load_arrays, blob)

    async def load_checkpoint(self, folder: str) -> None:
        """Load a safetensors file."""
        await self._stopped(_load_checkpoint, str(Path(folder) / CHECKPOINT))

    async def load_again(self) -> float:
        """Load the copy that is kept; returns the seconds of the load itself."""
        return await self._in_worker(_load_again)

    async def pause_only(self) -> None:
        """Stop and go on, with the KV cache recomputed, as a commit does, but load nothing."""
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        await self._engine.resume_generation()

    async def load_only(self) -> None:
        """Load the copy that is kept in a pause: no delivery can disturb answers less."""
        await self._stopped(_load_again)

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

    async def begin_answers(self, streams: int) -> None:
        """Have `streams` answers under way at any time, each from its first token."""
        self._arrivals = [[] for _ in range(streams)]
        self._answers = [asyncio.create_task(self._answer(one)) for one in self._arrivals]
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

    async def _answer(self, arrivals: list[float]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=ANSWER_TOKENS,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        while True:
            number = next(self._numbers)
            ids = [3 + (number + position) % 200 for position in range(PROMPT_TOKENS)]
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

    async def _stopped(self, work: Any, *args: Any) -> None:
        """Work in the engine's worker while nothing is sampled, as a rival would stop it."""
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._in_worker(work, *args)
        finally:
            await self._engine.resume_generation()

    async def _in_worker(self, work: Any, *args: Any) -> Any:
        (result,) = await self._engine.collective_rpc(cloudpickle.dumps(work), args=args)
        return result


def _as_arrays(full: dict[str, Any]) -> dict[str, Any] | None:
    """Arrays travel through the object store without a copy; numpy has no bfloat16."""
    import torch

    if not full:
        return None
    return {name: (one.view(torch.uint8).numpy(), one.dtype) for name, one in full.items()}


def _load_arrays(worker: Any, blob: bytes) -> None:
    import torch

    arrays = pickle.loads(blob)
    tensors = {name: torch.from_numpy(one).view(dtype) for name, (one, dtype) in arrays.items()}
    _load(worker, iter(tensors.items()))


def _load_checkpoint(worker: Any, path: str) -> None:
    from safetensors.torch import load_file

    _load(worker, iter(load_file(path).items()))


def _load_again(worker: Any) -> float:
    copy = worker.weight_transfer_engine._copy
    began = time.perf_counter()
    _load(worker, copy.named_tensors())
    return time.perf_counter() - began


def _load(worker: Any, tensors: Any) -> None:
    """The same load for every way, so that only the way differs."""
    from services.rollout_server.engine.vllm_patches import layerwise_load

    receiver = worker.weight_transfer_engine
    layerwise_load.load(receiver.model, receiver.model_config, tensors)
