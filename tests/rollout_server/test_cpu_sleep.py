"""A real engine on CPU whose device is lent: its memory before and after, and what it answers."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from transformers import Qwen3Config

from services.protocol.weights.replica_control import (
    ControlAction,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.control.replica_control import EngineControl

from .conftest import SMALL, Sender, build_model
from .served import Served, serve, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
TOLERANCE = 1e-4
IDS = map(str, itertools.count())

LARGE = SMALL | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    config = Qwen3Config(**LARGE, head_dim=64, tie_word_embeddings=True)
    folder = build_model(tmp_path_factory.mktemp("large"), config=config)
    async with serve(folder) as served:
        yield served


def control_of(served: Served, **settings: Any) -> EngineControl:
    config = RolloutServerConfig(model="m", placement="shared", **settings)
    return EngineControl(served.engine, served.loader, config)


async def do(control: EngineControl, action: ControlAction) -> ControlOutcome:
    order = ControlReplica(control_id=next(IDS), action=action, level=None)
    outcome = await control.carry_out(order, "r")
    assert outcome is not None
    return outcome


def engine_memory() -> int:
    """Private resident bytes of the processes below this one."""
    return sum(_private(child.pid) for child in psutil.Process().children(recursive=True))


def _private(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    kinds = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


async def test_a_real_engine_on_cpu_gives_its_memory_back_and_answers_exactly_afterwards(
    served: Served, sender: Sender
) -> None:
    control = control_of(served)
    await served.push(sender, seed=1)
    first = await whole(served, 300, "before")
    assert served.worst_difference(first) < TOLERANCE
    weights = sum(one.numel() * 4 for one in next(iter(served.policies.values())).parameters())
    awake = engine_memory()
    lent = await do(control, ControlAction.LEND_DEVICE)
    assert (lent.error, lent.held) == (None, Hold.LENT)
    freed = awake - engine_memory()
    assert freed > 0.9 * weights, f"{freed / MIB:.0f} MiB of {weights / MIB:.0f} were given back"
    await do(control, ControlAction.TAKE_DEVICE)
    for seed in (1, 2):
        await served.push(sender, seed=seed)
        answer = await whole(served, 300, f"after {seed}")
        assert served.worst_difference(answer) < TOLERANCE
        assert (answer.tokens == first.tokens) is (seed == 1)
    assert engine_memory() < awake + 0.2 * weights


@pytest.mark.slow
async def test_a_real_engine_whose_weights_stay_gives_its_kv_cache_back(
    served: Served, sender: Sender
) -> None:
    control = control_of(served, kept_on_gpu="weights")
    await served.push(sender, seed=3)
    before = await whole(served, 900, "long")
    awake = engine_memory()
    assert (await do(control, ControlAction.LEND_DEVICE)).error is None
    assert awake - engine_memory() > 4 * MIB
    await do(control, ControlAction.TAKE_DEVICE)
    after = await whole(served, 900, "again")
    assert after.tokens == before.tokens
    assert served.worst_difference(after) < TOLERANCE
