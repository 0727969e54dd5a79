"""Copies of saved inputs are ordered with the arithmetic, and change nothing.

The streams here only note what waits for what, and a detector refuses two uses of memory on two
streams, one of them a write, of which none waits for the other. Memory that is let go counts as
written by the stream that it came from, because torch's allocator gives it out again there.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.trainer.offload.activation_offload import HostInputs, checkpointed

LAYERS = 5
Clock = Counter[int]


class Stream:
    def __init__(self) -> None:
        self.clock: Clock = Counter()

    def wait_stream(self, other: "Stream") -> None:
        self.clock |= other.clock

    def record_event(self) -> Clock:
        return self.clock.copy()

    def wait_event(self, event: Clock) -> None:
        self.clock |= event


class Device:
    """What `torch.cuda` is to a GPU."""

    def __init__(self) -> None:
        self.main = self.current = Stream()

    def Stream(self) -> Stream:
        return Stream()

    def current_stream(self) -> Stream:
        return self.current

    def is_available(self) -> bool:
        return False  # so that memory is not pinned

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current, before = stream, self.current
        try:
            yield
        finally:
            self.current = before


class Races(TorchDispatchMode):
    """Notes on which stream each memory is used, and what had been waited for by then."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._uses: dict[int, list[tuple[Stream, Clock, bool]]] = {}
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        stream = self._device.current
        stream.clock[id(stream)] += 1
        written = {
            id(one)
            for one, of in zip(args, func._schema.arguments, strict=False)
            if of.alias_info is not None and of.alias_info.is_write
        }
        for one in tree_leaves((args, kwargs, result)):
            if isinstance(one, torch.Tensor):
                self._use(one.untyped_storage(), stream, id(one) in written, str(func))
        return result

    def _use(self, storage: Any, stream: Stream, write: bool, what: str) -> None:
        key = storage._cdata
        if key not in self._uses:
            self._uses[key], write = [], True
            weakref.finalize(storage, self._let_go, key, stream)
        self._check(key, stream, write, what)
        self._uses[key].append((stream, stream.clock.copy(), write))

    def _check(self, key: int, stream: Stream, write: bool, what: str) -> None:
        for other, then, written in self._uses[key]:
            if (write or written) and stream.clock[id(other)] < then[id(other)]:
                self.found.append(what)

    def _let_go(self, key: int, stream: Stream) -> None:
        self._check(key, stream, True, "let go")
        del self._uses[key]


def trained(inputs: HostInputs | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(LAYERS)]
    runs = [checkpointed(layer.forward, inputs) for layer in layers]
    for _ in range(2):
        state = torch.randn(4, 8)
        for run in runs:
            state = state + run(state)
        state.square().sum().backward()
    return [one.grad for layer in layers for one in layer.parameters()]


def test_no_copy_races_with_the_arithmetic_and_gradients_are_the_same() -> None:
    device = Device()
    with Races(device) as races:
        moved = trained(HostInputs(device))
    assert races.found == []
    assert all(map(torch.equal, moved, trained(None)))


@pytest.mark.parametrize("left_out", ["wait_stream", "wait_event"])
def test_the_detector_finds_a_wait_that_is_left_out(monkeypatch, left_out) -> None:
    monkeypatch.setattr(Stream, left_out, lambda self, other: None)
    device = Device()
    with Races(device) as races:
        trained(HostInputs(device))
    assert races.found


def test_a_pass_without_a_backward_pass_leaves_the_next_one_right() -> None:
    device = Device()
    inputs = HostInputs(device)
    with Races(device) as races:
        checkpointed(nn.Linear(8, 8).forward, inputs)(torch.randn(4, 8, requires_grad=True))
        moved = trained(inputs)
    assert races.found == []
    assert all(map(torch.equal, moved, trained(None)))
