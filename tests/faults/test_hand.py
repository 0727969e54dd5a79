import os
import time

import psutil
import pytest

from services.chaos import hand
from services.chaos.processes import Life, Victim
from services.chaos.script import Deed, Fault, Target


def test_faults_that_are_over_leave_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand, "own_raylet", os.getpid)
    struck = hand.Hand()
    nobody = Victim(target=Target.RANK, life=Life(pid=os.getpid(), started=-1), below=(), title="")
    deed = Deed(at=0.0, fault=Fault.KILL, target=Target.RANK)
    before = psutil.Process().num_fds()
    for _ in range(2):
        assert "it has ended already" in struck.strike(deed, nobody)
    deadline = time.monotonic() + 60
    while psutil.Process().num_fds() > before:  # keepers may be ending still
        assert time.monotonic() < deadline
        struck._forget_ended()
