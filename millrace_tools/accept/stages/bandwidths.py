"""Bandwidths: disk, host memory, between host and GPUs, between GPUs, between nodes."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace_tools.accept.bench import Bench, measured_by
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.stage import NotTried, Outcome, Stage
from millrace_tools.accept.stages.node_link import NodeLink

_DEVICES = "services.trainer.self_test.device_bandwidths"
_CHUNK = 32 << 20
_DISK_BYTES, _QUICK_DISK_BYTES = 512 << 20, 64 << 20
_MEMORY_BYTES = 128 << 20
_ROUNDS = 3
_NODE_BYTES = 256 << 20


def _gigabytes(name: str, rate: float) -> Figure:
    return Figure(name=name, value=round(rate / 1e9, 3), unit="GB/s")


def _rate(work: Callable[[], object], size: int) -> float:
    """Bytes a second."""
    began = time.perf_counter()
    work()
    return size / (time.perf_counter() - began)


def disk(bench: Bench, deadline: Deadline) -> Outcome:
    """Write and sync a file, and read it back past the page cache where that can be dropped."""
    size = _QUICK_DISK_BYTES if bench.quick else _DISK_BYTES
    path = bench.folder / ".bandwidth"
    try:
        written = _rate(lambda: _write(path, size, deadline), size)
        read = _rate(lambda: _read(path, deadline), size)
    finally:
        path.unlink(missing_ok=True)
    return Outcome(figures=(_gigabytes("write", written), _gigabytes("read", read)))


def _write(path: Path, size: int, deadline: Deadline) -> None:
    chunk = os.urandom(_CHUNK)
    with path.open("wb") as file:
        for _ in range(size // _CHUNK):
            deadline.left_s("writing a file")
            file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path, deadline: Deadline) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(_CHUNK):
            deadline.left_s("reading a file")


def host_memory(bench: Bench, deadline: Deadline) -> Outcome:
    """Copies between two buffers, by one thread, the fastest of three."""
    with mmap.mmap(-1, _MEMORY_BYTES) as source, mmap.mmap(-1, _MEMORY_BYTES) as target:
        for one in (source, target):  # so that no page is made within the measurement
            one[:] = bytes(_MEMORY_BYTES)
        views = memoryview(target), memoryview(source)
        try:
            rates = []
            for _ in range(_ROUNDS):
                deadline.left_s("copying memory")
                rates.append(_rate(lambda: _copy(*views), _MEMORY_BYTES))
        finally:
            for view in views:
                view.release()
    return Outcome(figures=(_gigabytes("copy", max(rates)),))


def _copy(target: memoryview, source: memoryview) -> None:
    target[:] = source


def host_to_device(bench: Bench, deadline: Deadline) -> Outcome:
    """Pinned host memory to and from the slowest GPU."""
    found = measured_by(_DEVICES, deadline=deadline)
    rates = {"to device": "host_to_device", "to host": "device_to_host", "within": "within_device"}
    return Outcome(figures=tuple(_gigabytes(name, found[key]) for name, key in rates.items()))


def device_to_device(bench: Bench, deadline: Deadline) -> Outcome:
    """The slowest pair of GPUs."""
    found = measured_by(_DEVICES, deadline=deadline)
    return Outcome(figures=(_gigabytes("slowest pair", found["device_to_device"]),))


def node_to_node(bench: Bench, deadline: Deadline) -> Outcome:
    """One TCP stream from each node of the cluster to the next."""
    if bench.address is None:
        raise NotTried("no --address of a Ray cluster was given")
    import ray  # takes seconds

    from millrace_tools.client.joined_cluster import joined_cluster, node_actors

    def answer(call: Any) -> Any:
        return ray.get(call, timeout=deadline.left_s("a transfer between nodes"))

    with joined_cluster(bench.address):
        ends = node_actors(NodeLink)
        if len(ends) < 2:
            raise NotTried("the cluster has one node")
        rates = []
        for (_, sender), (address, receiver) in zip(ends, [*ends[1:], ends[0]], strict=True):
            port = answer(receiver.listen.remote())
            receiving = receiver.receive.remote(_NODE_BYTES)
            answer(sender.send.remote(address, port, _NODE_BYTES))
            rates.append(_NODE_BYTES / answer(receiving))
    figures = (
        _gigabytes("slowest", min(rates)),
        _gigabytes("fastest", max(rates)),
        Figure(name="nodes", value=len(rates)),
    )
    return Outcome(figures=figures)


STAGES = (
    Stage(name="disk", purpose="bandwidth of the report's disk", deadline_s=120.0, run=disk),
    Stage(
        name="host-memory",
        purpose="bandwidth of a copy in host memory",
        deadline_s=60.0,
        run=host_memory,
    ),
    Stage(
        name="host-to-device",
        purpose="bandwidth between host memory and each GPU",
        deadline_s=180.0,
        run=host_to_device,
        gpus=1,
    ),
    Stage(
        name="device-to-device",
        purpose="bandwidth between each two GPUs",
        deadline_s=180.0,
        run=device_to_device,
        gpus=2,
    ),
    Stage(
        name="node-to-node",
        purpose="bandwidth of a TCP stream between nodes",
        deadline_s=300.0,
        run=node_to_node,
    ),
)
