"""Batches that do not wait for their slowest groups: interrupt, mask, and what it costs."""

from pathlib import Path

import pytest

from services.protocol.run.orchestrator import RunState
from tests.orchestrator.fakes import metric_lines, run_to_end, trajectories, world

pytestmark = pytest.mark.usefixtures("no_drawing")


async def test_an_unfinished_group_is_interrupted_keeps_its_tokens_and_is_trained_next(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        slow: list[str] = []
        cluster.router.answers = lambda asked, index, version: index == 0

        async def hold(asked, index: int) -> None:
            """One choice of the first group ends only after it was interrupted."""
            if asked.body["n"] > 1 and not slow:
                slow.append(asked.session)
            if asked.session in slow and index == 2:
                await cluster.router.interrupted.wait()

        cluster.router.hold = hold
        config = cluster.run_config(schedule={"preset": "stream"}, steps=4)
        status = await run_to_end(cluster, config)
        assert (status.state, status.ledger.failed) == (RunState.FINISHED, 0), status.detail
        (session,) = slow
        group_id = int(session.split("-")[-2])
        ((version, group),) = [
            (version, group)
            for version, batch in cluster.trainer.batches
            for group in batch.groups
            if group.group_id == group_id
        ]
        assert version == cluster.router.floors[session], "in the very next batch"
        assert [one.trajectory.oldest_version for one in group.trajectories] == [version - 1] * 4
        masks = [one.trajectory.loss_mask for one in group.trajectories]
        late = masks.pop(2)
        assert late == (0,) + (1,) * (len(late) - 1), "what it sampled after the interruption"
        assert not any(any(mask) for mask in masks), "their siblings only count for the rewards"
        assert [asked.session for asked in cluster.router.asked].count(session) == 1


@pytest.mark.parametrize("preset", ["stream", "partial"])
async def test_nothing_too_old_carries_a_gradient_and_nothing_is_thrown_away(
    tmp_path: Path, preset: str
) -> None:
    async with world(tmp_path, commit_delay_s=0.005) as cluster:
        cluster.router.delay = lambda asked, index: 0.03 if asked.body["seed"] % 4 == 0 else 0.002
        config = cluster.run_config(schedule={"preset": preset}, steps=6)
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        if config.schedule.max_staleness:
            assert status.ledger.expired == 0
        # Else what is whole when a batch is full without it has no young token, and ends there.
        for version, batch in cluster.trainer.batches:
            for one in trajectories(batch):
                young = version - config.schedule.max_staleness
                for span in one.trajectory.spans:
                    kept = one.trajectory.loss_mask[span.start : span.end]
                    assert set(kept) <= {int(span.version >= young)}
        worst = max(line["staleness_max"] for line in metric_lines(status))
        assert worst <= config.schedule.max_staleness
