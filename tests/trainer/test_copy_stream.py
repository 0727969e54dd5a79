"""Shards that leave a device while the training thread goes on, on a CUDA that runs late."""

import gc
from typing import Any

import pytest
import torch

from services.trainer.snapshot import copy_stream
from services.trainer.snapshot.copy_stream import CopyStream
from services.transport import pinned_memory
from services.transport.shared_memory import SharedBuffer
from tests.trainer.fake_cuda_streams import FakeCuda, OnDevice


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(pinned_memory, "_forget_error", lambda: None)
    return fake


def copied(copies: CopyStream, buffer: SharedBuffer, shard: Any) -> Any:
    with copies.reading(buffer):
        copies.copy(shard, buffer.bytes.view(torch.bfloat16).split(3))
        return copies.copied()


def held(buffer: SharedBuffer) -> list[float]:
    return buffer.bytes.view(torch.bfloat16).tolist()


def test_weights_that_wait_for_the_reads_change_after_them(cuda) -> None:
    copies, buffer = CopyStream(on_device=True), SharedBuffer(6)
    shard = OnDevice(cuda, torch.zeros(3))
    shard.add(1.0)  # the last step's update, not yet done when the snapshot is taken
    wait = copied(copies, buffer, shard)
    copies.let_weights_change()
    shard.add(1.0)
    assert held(buffer) == [0.0] * 3, "the training thread waited"
    cuda.main.run()
    wait()
    assert held(buffer) == [1.0] * 3
    assert shard.values.tolist() == [2.0] * 3


def test_the_fake_notices_weights_that_change_too_early(cuda) -> None:
    copies, buffer = CopyStream(on_device=True), SharedBuffer(6)
    shard = OnDevice(cuda, torch.zeros(3))
    wait = copied(copies, buffer, shard)
    shard.add(1.0)
    cuda.main.run()
    wait()
    assert held(buffer) == [1.0] * 3


def test_pieces_of_a_shard_reach_their_places(cuda, monkeypatch) -> None:
    monkeypatch.setattr(copy_stream, "PIECE", 2)
    copies, buffer = CopyStream(on_device=True), SharedBuffer(10)
    copied(copies, buffer, OnDevice(cuda, torch.arange(5.0)))()
    assert held(buffer) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_buffer_is_pinned_once_and_until_it_is_gone(cuda) -> None:
    copies, buffer = CopyStream(on_device=True), SharedBuffer(6)
    for _ in range(2):
        copied(copies, buffer, OnDevice(cuda, torch.zeros(3)))()
    address = buffer.bytes.data_ptr()
    assert cuda.registered == [(address, 6)]
    assert not cuda.unregistered
    del buffer
    gc.collect()
    assert cuda.unregistered == [address]


def test_a_buffer_that_cannot_be_pinned_gets_the_bytes_all_the_same(cuda) -> None:
    cuda.refuses = True
    copies, buffer = CopyStream(on_device=True), SharedBuffer(6)
    copied(copies, buffer, OnDevice(cuda, torch.ones(3)))()
    assert held(buffer) == [1.0] * 3


def test_shards_in_host_memory_are_there_when_the_call_returns() -> None:
    copies, buffer = CopyStream(on_device=False), SharedBuffer(6)
    copied(copies, buffer, torch.ones(3))
    copies.let_weights_change()
    assert held(buffer) == [1.0] * 3
