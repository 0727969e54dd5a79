"""The start-up self-test notices every layer that is missing."""

import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import BOOT, Jail
from services.reward_service.isolation.seccomp_filter import SeccompFilter, build_filter
from services.reward_service.sandbox.sandbox import Sandbox
from services.reward_service.sandbox.self_test import SelfTestFailed, find_tier
from services.reward_service.sandbox.slot import Slot

ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)

StartSlot = Callable[..., object]


@pytest_asyncio.fixture
async def start_slot() -> AsyncIterator[Callable[..., object]]:
    slots: list[Slot] = []

    async def start(jail: Jail, seccomp: SeccompFilter) -> Slot:
        slot = Slot(jail, seccomp, start_s=30)
        slots.append(slot)
        await slot.start()
        return slot

    yield start
    for slot in slots:
        slot.close()


async def test_without_seccomp_the_self_test_fails_and_names_what_got_through(
    start_slot: Callable[..., object],
) -> None:
    open_filter = SeccompFilter(program=ALLOW_ALL * 2, own_pid_at=12)
    slot = await start_slot(Jail.here(namespaces=False), open_filter)  # type: ignore[misc]
    with pytest.raises(SelfTestFailed) as failure:
        await find_tier(slot)
    for attack in ("socketpair", "fork", "memfd", "signal_by_owner"):
        assert attack in str(failure.value)
    assert "read_file" not in str(failure.value)  # Landlock still holds


async def test_without_landlock_the_self_test_fails_and_names_what_got_through(
    start_slot: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Jail.settings

    def open_to_all(jail: Jail, seccomp: SeccompFilter) -> dict[str, Any]:
        made = settings(jail, seccomp)
        made["kinds"]["source"]["paths"] = {"readable": ["/"]}
        return made

    monkeypatch.setattr(Jail, "settings", open_to_all)
    slot = await start_slot(Jail.here(namespaces=False), build_filter())  # type: ignore[misc]
    with pytest.raises(SelfTestFailed, match="read_file, list_root"):
        await find_tier(slot)


async def test_the_tier_is_what_was_found_not_what_was_asked_for(
    start_slot: Callable[..., object],
) -> None:
    bare = await start_slot(Jail.here(namespaces=False), build_filter())  # type: ignore[misc]
    assert await find_tier(bare) == "B"
    jailed = await start_slot(Jail.here(namespaces=True), build_filter())  # type: ignore[misc]
    assert await find_tier(jailed) == "A"


async def test_a_service_below_the_required_tier_refuses_to_start() -> None:
    config = RewardServiceConfig(require_tier="A", use_bubblewrap=False)
    with pytest.raises(InvalidInput, match="bubblewrap") as refusal:
        await Sandbox(config).start()
    assert refusal.value.field == "require_tier"


async def test_a_service_whose_self_test_fails_refuses_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_filter = SeccompFilter(program=ALLOW_ALL * 2, own_pid_at=12)
    monkeypatch.setattr(
        "services.reward_service.sandbox.self_test.build_filter", lambda: open_filter
    )
    with pytest.raises(InvalidInput, match="attacks got through") as refusal:
        await Sandbox(RewardServiceConfig()).start()
    assert "Landlock" in refusal.value.fix
    assert "fork" in refusal.value.fix


async def test_a_kernel_without_landlock_is_named_in_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_landlock = BOOT.replace(
        "module.main(control)",
        "sys.modules['services.reward_service.jailed.confine'].LANDLOCK_CREATE_RULESET = 9999\n"
        "module.main(control)",
    )
    monkeypatch.setattr("services.reward_service.isolation.jail.BOOT", no_landlock)
    with pytest.raises(InvalidInput, match="Function not implemented"):
        await Sandbox(RewardServiceConfig()).start()


async def test_an_interpreter_that_cannot_be_run_is_named(
    start_slot: Callable[..., object],
) -> None:
    jail = replace(Jail.here(namespaces=False), interpreter="/nonexistent/python")
    with pytest.raises(Exception, match="/nonexistent/python"):
        await start_slot(jail, build_filter())  # type: ignore[misc]


def test_no_setting_makes_it_unsafe() -> None:
    assert not [name for name in RewardServiceConfig.model_fields if "unsafe" in name]
    with pytest.raises(InvalidInput, match="allow_unsafe"):
        RewardServiceConfig.from_data({"allow_unsafe": True}, source="test")
    assert RewardServiceConfig().slots >= 1
