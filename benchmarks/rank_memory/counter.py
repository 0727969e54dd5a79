"""Counts the bytes of all storages that are alive, by device."""

import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter

aten = torch.ops.aten


class StorageCounter(TorchDispatchMode):
    """Follows every storage that an operation makes, from its making or resizing to its end.

    It also answers the few questions that fake tensors cannot, as a step without faults would: a
    value is finite, and no place is chosen.

    Attributes:
        now: bytes by type of device.
        peak: the most of each since `restart`.
        largest: bytes at the peak of the device `explained`, by the operation that made them;
            slow.
    """

    def __init__(self, explained: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self._explained = explained
        self._held: dict[int, tuple[int, str, str]] = {}
        self._resize = torch.UntypedStorage.resize_

    def restart(self) -> None:
        """Count the peak from here on."""
        self.peak, self.largest = Counter(self.now), Counter()

    def __enter__(self) -> "StorageCounter":
        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            self._resize(storage, size)  # what FSDP frees and takes again, past the dispatcher
            if storage._cdata in self._held:
                self._resized(storage)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(one, "__tensor_flatten__") for one in types):
            return NotImplemented  # until it is about the tensors inside
        result = _answer(func, args, kwargs or {})
        for one in tree_iter(result):
            if isinstance(one, Tensor) and not is_traceable_wrapper_subclass(one):
                self._note(one, func)
        return result

    def _note(self, tensor: Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._held:
            self._resized(storage)
            return
        what = f"{func} {tuple(tensor.shape)} {tensor.dtype}"
        self._held[storage._cdata] = 0, tensor.device.type, what
        weakref.finalize(storage, self._ended, storage._cdata)
        self._resized(storage)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        before, device, what = self._held[storage._cdata]
        size = storage.nbytes()
        if size == before:
            return
        self._held[storage._cdata] = size, device, what
        self.now[device] += size - before
        if self.now[device] > self.peak[device]:
            self.peak[device] = self.now[device]
            if device == self._explained:
                self.largest = Counter()
                for held, of, origin in self._held.values():
                    self.largest[origin] += held if of == device else 0

    def _ended(self, key: int) -> None:
        size, device, _ = self._held.pop(key)
        self.now[device] -= size


def _answer(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation; of those that need data, what a step without faults gives."""
    if func is aten._local_scalar_dense.default:
        dtype = args[0].dtype
        return dtype == torch.bool or (1.0 if dtype.is_floating_point else 0)
    if func is aten.nonzero.default:
        return args[0].new_empty((0, args[0].dim()), dtype=torch.int64)
    if func is aten.index.Tensor and any(
        one is not None and one.dtype == torch.bool for one in args[1]
    ):
        return args[0].new_empty(0)
    if func is aten._pin_memory.default:
        return args[0].clone()
    device = kwargs.get("device")
    if func is aten._to_copy.default and device is not None and args[0].device != device:
        # Small tensors keep their data, which a device in name only cannot take.
        dtype = kwargs.get("dtype") or args[0].dtype
        return torch.empty(args[0].shape, dtype=dtype, device=device)
    return func(*args, **kwargs)
