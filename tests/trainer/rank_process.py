"""One rank in a process of its own: does what the test at the other end of a socket asks.

Run as a script it imports once, and then forks a rank for every socket that it is told of.
"""

import asyncio
import errno
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest import mock

from services.observability.garbage import heavy_imports

with heavy_imports():
    import ray
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    from services.trainer.config import TrainerConfig
    from services.trainer.model.lora import adapter_off
    from services.trainer.model.model import Policy, load_policy
    from services.trainer.model.stored_tensors import StoredTensor
    from services.trainer.rank import rank as rank_module
    from services.trainer.rank.learner import Learner
    from services.trainer.rank.process_group import join_group, make_mesh, open_store
    from tests.chaos.calls import BusOverSocket, serve
    from tests.resident_memory import most_added
    from tests.trainer.halt import Halt
    from tests.trainer.held_bytes import between_passes

ROWS = StoredTensor.rows


class RankProcess:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._store: Any = None
        self._learner: Any = None
        self._gate = threading.Event()
        self._held: tuple[list[int], list[int]] = ([], [])
        self._waits: list[float] = []

    def meet(self) -> int:
        self._store = open_store("127.0.0.1")
        return self._store.port

    def join(self, config: TrainerConfig, port: int) -> None:
        store = self._store or TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        join_group(config, self._rank, store, "127.0.0.1")

    def do(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def load(self, config: TrainerConfig) -> Any:
        self._end_learner()
        self._learner = Learner(config)
        return self._learner.model

    def _end_learner(self) -> None:
        """Drop the learner and destroy its process groups.

        A thread of each group wakes up 100 times a second, and a rank of these tests has dozens
        of learners one after another; a rank of a deployment has one.
        """
        if self._learner is not None:
            writer = self._learner._checkpoints
            writer.settle()
            for group in (writer._group, self._learner._context_group.ranks):
                if group is not None:
                    dist.destroy_process_group(group)
            self._learner = None

    def peak_of(self, *calls: tuple[str, tuple[Any, ...]]) -> int:
        """Bytes that calls add to this process's resident memory at most."""
        with most_added() as found:
            for method, given in calls:
                getattr(self, method)(*given)
        return found[0]

    def peak_of_load(self, config: TrainerConfig) -> int:
        self._end_learner()
        return self.peak_of(("load", (config,)))

    def progress_of_load(self, config: TrainerConfig) -> list[tuple[int, int]]:
        """What a load tells of its progress."""
        told: list[tuple[int, int]] = []
        load_policy(config, make_mesh(config), Policy, progress=lambda *both: told.append(both))
        return told

    def fail_reading(self, rank: int) -> None:
        """Of this rank alone, or of none if there is no such rank, the disk fails."""

        def fail(tensor: StoredTensor, *_: Any) -> Any:
            raise OSError(errno.EIO, "Input/output error", str(tensor.file))

        setattr(StoredTensor, "rows", fail if rank == self._rank else ROWS)  # noqa: B010

    def snapshot_bytes(self, version: int) -> list[bytes]:
        """None of a rank that has nothing to send."""
        taken = self._learner.snapshots.get(version)
        buckets = range(len(taken.buckets)) if taken else ()
        return [taken.bucket(index).numpy().tobytes() for index in buckets]

    def full_tensors(self) -> dict[str, Any]:
        named = self._learner._policy.checkpoint_parameters()
        return {name: parameter.full_tensor().detach().numpy() for name, parameter in named}

    def reference_tensors(self) -> dict[str, Any]:
        """Of a KL reference."""
        model = self._learner._auxiliary_models.reference.model
        return {
            name.removeprefix("causal."): parameter.full_tensor().numpy()
            for name, parameter in model.named_parameters()
        }

    def buffers(self) -> dict[str, Any]:
        """Of the model inside the policy."""
        named = self._learner._policy.causal.named_buffers()
        return {name: buffer.numpy() for name, buffer in named}

    def adapter(self) -> dict[str, Any]:
        named = self._learner._policy.named_parameters()
        return {
            name.removeprefix("causal."): parameter.full_tensor().detach().numpy()
            for name, parameter in named
            if parameter.requires_grad
        }

    def first_gradient(self) -> dict[str, Any]:
        """What the first optimizer step was made of: AdamW's mean of it, before any other."""
        state = self._learner._optimizer.state
        share = 1 - self._learner._optimizer.param_groups[0]["betas"][0]
        return {
            name: (state[parameter]["exp_avg"].full_tensor() / share).numpy()
            for name, parameter in self._learner._policy.checkpoint_parameters()
        }

    def moments(self) -> dict[str, Any]:
        """Both of AdamW, of every parameter."""
        state = self._learner._optimizer.state
        return {
            f"{name}.{key}": _numbers(state[parameter][key].full_tensor()).numpy()
            for name, parameter in self._learner._policy.checkpoint_parameters()
            for key in ("exp_avg", "exp_avg_sq")
        }

    def moment_bytes(self) -> int:
        """Of the policy's moments on this rank, codes, scales and all."""
        states = self._learner._optimizer.state.values()
        local = (one[key].to_local() for one in states for key in ("exp_avg", "exp_avg_sq"))
        return sum(tensor.nbytes for one in local for tensor in _inside(one))

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """The policy's parameters by name, and the settings that they share."""
        learner = self._learner
        names = {id(one): name for name, one in learner._policy.causal.named_parameters()}
        return [
            {**group, "params": sorted(names[id(one)] for one in group["params"])}
            for group in learner._optimizer.param_groups
        ]

    def frozen_logprobs(self, sequences: list[list[int]]) -> dict[int, list[float]]:
        with adapter_off(self._learner._policy):
            return self._learner.logprobs(sequences)

    def note_held_bytes(self) -> None:
        """Note what tensors are alive before each pass of policy and critic."""
        self._held = ([], [])
        critic = self._learner._auxiliary_models.critic.model
        for model, held in zip((self._learner._policy, critic), self._held, strict=True):
            model.reduce_gradients = between_passes(model, held)

    def held_bytes(self) -> tuple[list[int], list[int]]:
        return self._held

    def critic_trained(self) -> list[str]:
        """Names of what the critic's optimizer changes."""
        named = self._learner._auxiliary_models.critic.model.causal.named_parameters()
        return [name for name, parameter in named if parameter.requires_grad]

    def optimizer_elements(self) -> int:
        """Of both moments, on this rank."""
        state = self._learner._optimizer.state.values()
        return sum(
            one[key].to_local().numel() for one in state for key in ("exp_avg", "exp_avg_sq")
        )

    def shard_elements(self) -> dict[str, int]:
        """Of each parameter, on this rank."""
        named = self._learner._policy.checkpoint_parameters()
        return {name: parameter.to_local().numel() for name, parameter in named}

    def weights_sum(self) -> float:
        """Of this rank's shards, in an order that stays: equal weights have equal sums."""
        named = self._learner._policy.checkpoint_parameters()
        return sum(float(one.to_local().double().abs().sum()) for _, one in named)

    def note_waits_for_reads(self) -> list[float]:
        """Sums of the weights as they were at each wait for a snapshot's reads, from now on."""
        waits: list[float] = []
        wait = self._learner._exporter.let_weights_change

        def noted() -> None:
            waits.append(self.weights_sum())
            wait()

        self._learner._exporter.let_weights_change = noted
        self._waits = waits
        return waits

    def waits_for_reads(self) -> list[float]:
        return self._waits

    def draw(self) -> float:
        return float(torch.rand(()))

    def hold_checkpoints(self) -> None:
        """Let the thread that writes them wait for `let_checkpoints_go`."""
        self._gate.clear()
        writer = self._learner._checkpoints
        writer._thread.submit(self._gate.wait, 60.0)

    def let_checkpoints_go(self) -> None:
        self._gate.set()

    def limit_files(self, size: int) -> None:
        """No file may grow above `size` bytes, -1 for any size: as on a full disk."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))

    def serve_actor(self, path: str, config: TrainerConfig, group: str, halt: Halt | None) -> None:
        """Be a whole `TrainerRank` at this socket, with no bus; never returns."""
        mock.patch.object(ray.util, "get_node_ip_address", return_value="127.0.0.1").start()
        mock.patch.object(rank_module, "bus_peer", return_value=BusOverSocket("/nowhere")).start()
        if halt is not None:
            halt.install()

        async def serve_rank() -> None:
            await serve(rank_module.TrainerRank(config, group, self._rank), path)

        asyncio.run(serve_rank())

    def __getattr__(self, method: str) -> Any:
        return getattr(self._learner, method)


def _numbers(moment: torch.Tensor) -> torch.Tensor:
    return moment.dequantize() if is_traceable_wrapper_subclass(moment) else moment


def _inside(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What has memory: the tensor, or those that it is made of."""
    if is_traceable_wrapper_subclass(tensor):
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [tensor]


def be_rank(socket: str, rank: int) -> None:
    process = RankProcess(rank)
    with Client(socket, "AF_UNIX") as connection:
        while True:
            method, args = connection.recv()
            if method == "stop":
                return
            try:
                connection.send((True, getattr(process, method)(*args)))
            except Exception as error:  # noqa: BLE001  (the test decides what to make of it)
                connection.send((False, _sendable(error)))


def _sendable(error: Exception) -> Exception:
    """With its traceback as a note, which pickle leaves out; some errors cannot be pickled."""
    told = traceback.format_exc()
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # noqa: BLE001  (an error's own code, of any library)
        error = RuntimeError(told)
    error.add_note(told)
    return error


def _forked(orders: Connection, socket: str, rank: int) -> int:
    if pid := os.fork():
        return pid
    orders.close()
    be_rank(socket, rank)
    os._exit(0)


def _ended(pid: int, patience_s: float) -> int:
    """The exit code of a rank, which is killed if it is still there after the time given."""
    handle = os.pidfd_open(pid)
    if not select.select([handle], [], [], patience_s)[0]:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(socket: str) -> None:
    # Ranks stay zombies until they are asked for: no other process has their number meanwhile.
    with Client(socket, "AF_UNIX") as connection:
        while True:
            try:
                order, *args = connection.recv()
            except EOFError:
                return
            answer = _forked(connection, *args) if order == "fork" else _ended(*args)
            connection.send(answer)


if __name__ == "__main__":
    main(sys.argv[1])
