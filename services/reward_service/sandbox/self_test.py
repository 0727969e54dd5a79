"""Chooses the jail at start-up, by what attacks from inside it achieved."""

import json
import marshal
from dataclasses import replace
from pathlib import Path
from typing import Literal

from services.observability.log import Log
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_tests import Limits
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.bubblewrap import MIN_VERSION, PACKAGE, NoBubblewrap
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.sandbox.execution import Execution, SlotFailed, SlotLost
from services.reward_service.sandbox.launcher import built_launcher
from services.reward_service.sandbox.slot import Slot

Tier = Literal["A", "B"]

_log = Log("reward_service")

_PROBE = (Path(__file__).parents[1] / "jailed" / "probe.py").read_text()
_LIMITS = Limits(cpu_s=10.0, memory_mb=256, output_kb=64)

_FIX_B = (
    "Untrusted code cannot be held here. Needed: Linux 5.13 or newer with Landlock enabled "
    "(lsm=...,landlock on the kernel command line) and seccomp filters, on x86_64 or aarch64; "
    "as root also the capabilities SETUID and SETGID. gVisor has no Landlock: use another "
    "runtime class."
)
_FIX_A = (
    f"Tier A needs bubblewrap {'.'.join(map(str, MIN_VERSION))} or newer (pip install {PACKAGE}, "
    "or apt-get install bubblewrap) and user namespaces (user.max_user_namespaces > 0, no AppArmor "
    "or container rule against them); or set require_tier: B."
)


class SelfTestFailed(RuntimeError):
    """Attacks got through, or the probe could not run; the message names which."""


async def strongest_jail(config: RewardServiceConfig) -> tuple[Jail, Tier]:
    """The strongest jail that works here, and its tier.

    Raises:
        InvalidInput: no working jail has the required tier; names what is missing.
    """
    problems: dict[str, str] = {}
    launcher = await built_launcher(config.header_cache_dir)
    for namespaces in [True, False] if config.use_bubblewrap else [False]:
        try:
            jail = replace(Jail.here(namespaces=namespaces), launcher=launcher)
            tier = await tier_of(jail, start_s=config.slot_start_s)
        except (NoBubblewrap, SelfTestFailed) as error:
            problems["with bubblewrap" if namespaces else "without"] = str(error)
            continue
        if tier <= config.require_tier:
            if problems:
                _log.warning("sandbox_without_namespaces", reason=problems)
            return jail, tier
    found = "; ".join(f"{how}: {why}" for how, why in problems.items())
    fix = _FIX_B if "without" in problems else _FIX_A
    raise InvalidInput(
        "require_tier", config.require_tier, fix + (f" Found: {found}." if found else "")
    )


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
        payload=marshal.dumps({"source": _PROBE}), stdin=b"", limits=_LIMITS, wall_s=120.0
    )
    try:
        (outcome,) = await slot.run(execution)
    except (SlotFailed, SlotLost) as error:
        raise SelfTestFailed(str(error)) from error
    if outcome.exit_code != 0:
        last = outcome.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SelfTestFailed(f"the probe ended with {outcome.exit_code}: {''.join(last)}")
    result = json.loads(outcome.stdout)
    if result["managed"]:
        raise SelfTestFailed("attacks got through: " + ", ".join(result["managed"]))
    return "A" if result["namespaces"] else "B"
