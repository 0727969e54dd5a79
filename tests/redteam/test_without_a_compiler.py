"""The same attacks on slots whose loop is the one in Python, as nothing could compile the other."""

import pytest

from services.reward_service.sandbox import launcher
from tests.redteam.test_unprivileged import attack_service


@pytest.mark.parametrize("tier", [pytest.param("A", marks=pytest.mark.slow), "B"])
async def test_a_service_without_the_launcher_holds_as_well(
    tier: str, new_scoring, function_job, program_job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_COMPILERS", ())
    settings: dict[str, str] = {}
    assert await attack_service(settings, tier, new_scoring, function_job, program_job) == []
