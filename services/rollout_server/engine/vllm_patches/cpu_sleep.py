"""Sleep for vLLM's CPU worker, which takes the call and frees nothing.

Tensors stay where they are, and their pages go back to the kernel: the next write gets fresh
ones. So does vLLM's sleep on GPUs, whose allocator keeps addresses and frees the memory behind
them. Everything above the worker is vLLM's own: pausing, the levels of sleep, waking.

Level 1 drops the KV cache; the weights are in host memory, where level 1 would put them. Level 2
drops the weights, too, and what oneDNN packed of them; a layerwise load writes all of it again.
"""

import ctypes
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.platforms import current_platform

_MADV_DONTNEED = 4
_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


def sleep_on_cpu() -> None:
    """Replace the methods of vLLM's CPU worker, where it is the one; again does nothing."""
    if not current_platform.is_cpu():
        return
    from vllm.v1.worker.cpu_worker import CPUWorker  # not a module for GPUs

    CPUWorker.sleep = _sleep
    CPUWorker.wake_up = _wake_up
    CPUWorker.discard = _discard


def _sleep(worker: Any, level: int = 1) -> None:
    _free_pages(_kv_caches(worker))
    if level > 1:
        model = worker.model_runner.model
        for layer in model.modules():
            if hasattr(layer, "cpu_linear"):
                layer.cpu_linear = _no_weights  # packed weights go with the function that had them
        _free_pages(model.parameters())
    _give_back_heap()


def _wake_up(worker: Any, tags: list[str] | None = None) -> None:
    """Pages come back with the first write."""


def _discard(worker: Any, tags: tuple[str, ...]) -> None:
    if "kv_cache" in tags:
        _free_pages(_kv_caches(worker))


def _kv_caches(worker: Any) -> Iterator[torch.Tensor]:
    for cache in worker.model_runner.kv_caches:
        yield from cache if isinstance(cache, list) else [cache]


def _free_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Give the whole pages of the tensors' storages back; what was there is zero afterwards.

    Raises:
        OSError: the kernel refuses.
    """
    for tensor in tensors:
        storage = tensor.untyped_storage()
        first = -(-storage.data_ptr() // _PAGE) * _PAGE
        size = (storage.data_ptr() + storage.nbytes()) // _PAGE * _PAGE - first
        if size <= 0:
            continue
        address, length = ctypes.c_void_p(first), ctypes.c_size_t(size)
        if _libc.madvise(address, length, _MADV_DONTNEED):
            code = ctypes.get_errno()
            raise OSError(code, f"madvise: {os.strerror(code)}")


def _give_back_heap() -> None:
    """Have the C library return what it keeps for later."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _no_weights(*_: Any) -> torch.Tensor:
    raise RuntimeError("the engine sleeps: its weights are gone until a version is loaded")
