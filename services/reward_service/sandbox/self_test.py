"""Decides at start-up how well the sandbox holds, from what attacks on it achieved."""

import json
from pathlib import Path
from typing import Literal

from services.protocol.reward.reward_service import Limits
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.sandbox.execution import Execution, SlotFailed, SlotLost
from services.reward_service.sandbox.slot import Slot

Tier = Literal["A", "B"]

_PROBE = (Path(__file__).parents[1] / "jailed" / "probe.py").read_text()
_LIMITS = Limits(cpu_s=10.0, memory_mb=256, output_kb=64)


class SelfTestFailed(RuntimeError):
    """Attacks got through, or the probe could not run; the message names which."""


async def tier_of(jail: Jail, *, start_s: float) -> Tier:
    """The tier of slots behind this jail; starts a slot for the test and closes it.

    Raises:
        SelfTestFailed: no slot starts there, or it does not hold.
    """
    slot = Slot(jail, build_filter(), start_s=start_s)
    try:
        await slot.start()
        return await find_tier(slot)
    except SlotFailed as error:
        raise SelfTestFailed(str(error)) from error
    finally:
        slot.close()


async def find_tier(slot: Slot) -> Tier:
    """Run the probe in a started slot: `A` with namespaces around it, `B` without.

    Raises:
        SelfTestFailed: something got through or the probe did not finish.
    """
    execution = Execution(
        payload=json.dumps({"source": _PROBE}).encode(), stdin=b"", limits=_LIMITS, wall_s=120.0
    )
    try:
        outcome = await slot.run(execution)
    except (SlotFailed, SlotLost) as error:
        raise SelfTestFailed(str(error)) from error
    if outcome.exit_code != 0:
        last = outcome.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SelfTestFailed(f"the probe ended with {outcome.exit_code}: {''.join(last)}")
    result = json.loads(outcome.stdout)
    if result["managed"]:
        raise SelfTestFailed("attacks got through: " + ", ".join(result["managed"]))
    return "A" if result["namespaces"] else "B"
