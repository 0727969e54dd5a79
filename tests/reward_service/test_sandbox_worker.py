"""A sandbox worker starts its slot once more where the first start fails, and then says so."""

import pytest

from services.reward_service.sandbox.execution import SlotFailed
from services.reward_service.sandbox.sandbox import SandboxWorker


class Weak:
    """A slot of which the first starts fail."""

    alive = False

    def __init__(self, failures: int) -> None:
        self.failures, self.starts = failures, 0

    async def start(self) -> None:
        self.starts += 1
        if self.starts <= self.failures:
            raise SlotFailed("no answer")


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_slot_whose_start_fails_once_is_started_again(failures: int) -> None:
    slot = Weak(failures)
    await SandboxWorker(slot, Weak(0)).start()
    assert slot.starts == failures + 1


async def test_a_slot_that_cannot_be_started_is_not_tried_for_ever() -> None:
    slot = Weak(9)
    with pytest.raises(SlotFailed, match="no answer"):
        await SandboxWorker(slot, Weak(0)).start()
    assert slot.starts == 2
