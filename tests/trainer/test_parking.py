"""A rank's state off its device and back."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.offload import parking
from services.trainer.offload.parking import Parking

CPU = torch.device("cpu")
MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_parked_tensors_hold_no_memory_and_come_back_bit_for_bit() -> None:
    tensors = [torch.randn(8 * MIB), torch.arange(1000), torch.empty(0)]
    before, view = [one.clone() for one in tensors], tensors[0].view(8, -1)[3]
    held, parked = resident(), Parking(CPU)
    assert parked.park([*tensors, view]) == 32 * MIB + 8000
    assert held - resident() > 30 * MIB
    parked.unpark()
    assert all(map(torch.equal, tensors, before))
    assert torch.equal(view, before[0].view(8, -1)[3]), "another view of the same memory"
    parked.unpark()
    tensors[0].add_(1)
    parked.park(tensors)
    parked.unpark()
    assert torch.equal(tensors[0], before[0] + 1)


def test_a_model_trains_on_as_if_it_had_never_been_parked() -> None:
    def trained(*, parks: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64)
        optimizer, parked = torch.optim.AdamW(model.parameters(), fused=True), Parking(CPU)
        for _ in range(3):
            model(torch.ones(4, 64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if parks:
                state = [one for held in optimizer.state.values() for one in held.values()]
                parked.park([*model.parameters(), *state])
                assert all(one.untyped_storage().nbytes() == 0 for one in model.parameters())
                parked.unpark()
        return list(model.parameters())

    assert all(map(torch.equal, trained(parks=True), trained(parks=False)))


def test_a_full_disk_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, content: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def no_space(**_: Any) -> Full:
        return Full()

    monkeypatch.setattr(parking.tempfile, "TemporaryFile", no_space)
    tensor = torch.ones(MIB)
    with pytest.raises(OSError, match="No space left"):
        Parking(CPU).park([tensor])
    assert torch.equal(tensor, torch.ones(MIB))


def test_a_short_write_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    real = parking.tempfile.TemporaryFile

    class Slow:
        def __init__(self, **named: Any) -> None:
            self._file = real(**named)

        def write(self, content: memoryview) -> int:
            return self._file.write(content[:1000])

        def readinto(self, content: memoryview) -> int:
            return self._file.readinto(content[:777])

        def seek(self, place: int) -> int:
            return self._file.seek(place)

    monkeypatch.setattr(parking.tempfile, "TemporaryFile", Slow)
    tensor = torch.randn(5000)
    before, parked = tensor.clone(), Parking(CPU)
    parked.park([tensor])
    parked.unpark()
    assert torch.equal(tensor, before)
