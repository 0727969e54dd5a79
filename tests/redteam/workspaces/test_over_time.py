"""A hostile program in a workspace that stays open, and thousands of workspaces: in short."""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from benchmarks.soak import workspaces as soak_of
from benchmarks.soak.workspace_holdings import grown, holdings, left
from services.protocol.reward.workspaces import OpenWorkspace, PythonCall
from services.reward_service.workspaces.errors import WorkspaceGone
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.workspaces.on_space import SPEC
from tests.redteam.workspaces.over_time import Neighbour, hostile, siege

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user's other processes look like a workspace's"
)
LIMIT_S = 600.0
ATTACKS = 50
HOUR_S, LIFE_S = 3600.0, 8.0


@pytest.mark.asyncio(loop_scope="session")
async def test_a_hostile_program_changes_nothing_for_its_neighbour(
    workspaces: Workspaces, nothing_grows: None
) -> None:
    found = await asyncio.wait_for(hostile(workspaces, 0.0, seed=1, least=ATTACKS), LIMIT_S)
    assert found["surprises"] == []
    assert found["attacks"] == ATTACKS
    gone = [end for end in found["ends"] if end.startswith("gone")]
    assert set(gone) <= {"gone: memory", "gone: disk"}, found


@pytest.mark.asyncio(loop_scope="session")
async def test_a_program_that_attacks_for_an_hour_ends_with_its_workspace(
    workspaces: Workspaces, nothing_grows: None
) -> None:
    """The hour of the workspace passes in some seconds; that of the call would go on."""
    spec = SPEC.model_copy(update={"total_s": LIFE_S, "idle_s": LIFE_S})
    attacked = await workspaces.open(spec, owner="hostile")
    neighbour = Neighbour(await workspaces.open(OpenWorkspace(), owner="quiet"))
    working = asyncio.create_task(neighbour.work())
    with pytest.raises(WorkspaceGone) as gone:
        await asyncio.wait_for(attacked.exec(siege(HOUR_S)), LIMIT_S)
    working.cancel()
    await asyncio.wait([working])
    assert gone.value.reason in ("total", "memory", "disk")
    assert working.cancelled()
    assert (neighbour.surprises, neighbour.seconds == []) == ([], False)
    after = await neighbour.workspace.python(PythonCall(code="kept"))
    assert after.result == "6" or after.interpreter_restarted  # its last call was cut off
    for one in (attacked, neighbour.workspace):
        await one.close("closed")


@pytest.mark.parametrize("tier", ["A", "B"])
async def test_nothing_is_left_of_workspaces_that_are_killed_at_random(
    tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`benchmarks/soak/workspaces.py` opens 5,000, and looks at time and memory as well."""
    options = argparse.Namespace(
        workspaces=40, kill_every=4.0, at_once=8, hostile_minutes=0.0, rounds=2, tier=tier, seed=3
    )
    seen = soak_of.Soak()
    # Not pytest's own folder, which is closed to the users of tier B.
    with tempfile.TemporaryDirectory(prefix="soak-workspaces-") as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        soak = soak_of.soak(options, Path(folder), seen)
        found = await asyncio.wait_for(soak, LIMIT_S)
        monkeypatch.undo()
        assert os.listdir(folder) == []
    wrong = [one for one in seen.findings.problems if "rss_mib" not in one]
    assert wrong == []
    assert seen.done == options.workspaces
    assert seen.kills.total() > 0
    assert found["crowd"]["open"] == options.at_once
    assert len(found["after_each_round"]) == options.rounds


def test_what_workspaces_leave_behind_is_told_from_what_a_service_keeps(tmp_path: Path) -> None:
    before = holdings(tmp_path)
    assert left(before, before) == []
    (tmp_path / "file").touch()
    kept = [[number] for number in range(2000)]
    many = [object() for _ in range(50_000)]
    large = bytearray(8 << 20)
    after = holdings(tmp_path)
    assert left(before, after) == [f"files: {before['files']} before, {before['files'] + 1} after"]
    grew = {one.partition(":")[0] for one in grown(before, after, 10)}
    assert {"objects", "blocks", "in_use_mib"} <= grew
    resident = {**before, "rss_mib": before["rss_mib"] + 5.0}
    assert [one.partition(":")[0] for one in grown(before, resident, 10)] == ["rss_mib"]
    assert grown(before, resident, 1000) == []  # whose ends are remembered
    assert grown(before, resident, 10, warm=False) == []
    del kept, many, large
    assert grown(before, holdings(tmp_path), 10, warm=False) == []
