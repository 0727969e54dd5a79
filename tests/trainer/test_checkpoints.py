"""Checkpoints of real ranks: written behind the training, good or not there, and continued."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.trainer import CheckpointReport, LedgerFrontier
from services.trainer.checkpoints.folder import CheckpointFolder
from services.trainer.checkpoints.manifest import MANIFEST, read_manifest
from tests.filling import fill
from tests.trainer.test_algorithms_over_ranks import given
from tests.trainer.test_learner import assert_same_steps, largest_difference, run_steps


def saved(ranks: Any, start: Any, model: Path, make_batch: Any, steps: int) -> list[Path]:
    """Train, with a checkpoint of every step; newest first."""
    run_steps(ranks, model, start, [])
    for step in range(1, steps + 1):
        ranks.call("train", make_batch(step), step - 1, step)
        assert ranks.call("save", step)[0].saved_step == step
    return CheckpointFolder(start.checkpoint_dir).newest_first()


@pytest.mark.parametrize("size", [1, 2])
def test_a_checkpoint_of_two_ranks_continues_exactly_on_any_number(
    rank_groups, tiny_model, make_batch, make_start, size
) -> None:
    start = make_start(warmup_steps=6)
    writer = rank_groups[2]
    run_steps(writer, tiny_model, start, [make_batch(1), make_batch(2)])
    frontier = LedgerFrontier(next_position=40, trained=12)
    assert [one.saved_step for one in writer.call("save", 2, frontier)] == [2, 2]
    expected = [writer.call("train", make_batch(s), s - 1, s)[0] for s in (3, 4)]
    weights = writer.call("full_tensors")[0]

    reader = rank_groups[size]
    reader.load(tiny_model)
    run = reader.call("start_run", start, 7)[0]
    assert (run.step, run.frontier, run.refused) == (2, frontier, ())
    continued = [reader.call("train", make_batch(s), s - 1, s)[0] for s in (3, 4)]
    assert_same_steps(continued, expected)
    assert largest_difference(reader.call("full_tensors")[0], weights) < 2e-5
    if size == writer.world_size:
        for one, other in zip(continued, expected, strict=True):
            assert one.digests == other.digests


@pytest.mark.parametrize("saved_at", [1, 2, 3])
def test_a_run_goes_on_with_the_same_bits_in_and_after_its_warm_up_on_given_answers(
    rank_groups, tiny_model, make_batch, make_start, saved_at
) -> None:
    ranks = rank_groups[2]
    start = make_start(warmup_steps=3, minibatches=2, cross_entropy={"warmup_steps": 2})
    batches = [given(make_batch(1)), given(make_batch(2)), make_batch(3), make_batch(4)]
    run_steps(ranks, tiny_model, start, batches[:saved_at])
    ranks.call("save", saved_at)

    def rest(version: int) -> list[Any]:
        return [
            ranks.call("train", batch, version + more, version + more + 1)[0]
            for more, batch in enumerate(batches[saved_at:])
        ]

    expected = rest(saved_at)
    ranks.load(tiny_model)
    assert ranks.call("start_run", start, saved_at)[0].step == saved_at
    continued = rest(saved_at)
    assert [one.digests for one in continued] == [one.digests for one in expected]
    assert [one.metrics for one in continued] == [one.metrics for one in expected]
    learned = ["cross_entropy" in one.metrics for one in continued]
    assert learned == [step < 2 for step in range(saved_at, 4)]


def test_training_goes_on_while_a_checkpoint_is_written_and_neither_changes_the_other(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks, start = rank_groups[2], make_start()
    plain, _ = run_steps(ranks, tiny_model, make_start("none"), [make_batch(s) for s in (1, 2)])
    run_steps(ranks, tiny_model, start, [make_batch(1)])
    ranks.call("hold_checkpoints")
    begun = ranks.call("save", 1, None, False)[0]
    second = ranks.call("train", make_batch(2), 1, 2)[0]
    assert begun.saved_step == second.checkpoint.saved_step == 0
    assert second.digests == plain[1].digests
    assert CheckpointFolder(start.checkpoint_dir).newest_first() == []
    ranks.call("let_checkpoints_go")
    assert ranks.call("save", 2, None, True)[0].saved_step == 2  # after the one before
    steps = [read_manifest(path) for path in CheckpointFolder(start.checkpoint_dir).newest_first()]
    assert [one.progress.step for one in steps] == [2, 1]
    shutil.rmtree(CheckpointFolder(start.checkpoint_dir).of_step(2))
    ranks.call("start_run", start, 7)
    again = ranks.call("train", make_batch(2), 7, 8)[0]
    assert again.digests == second.digests


def test_the_random_state_comes_back_with_the_checkpoint(
    rank_groups, tiny_model, make_start
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(), 0)
    ranks.call("draw")
    ranks.call("save", 0)
    expected = ranks.call("draw")
    ranks.call("start_run", make_start(), 1)
    assert ranks.call("draw") == expected


def test_a_branch_begins_with_the_policy_of_another_runs_checkpoint_and_nothing_else_of_it(
    rank_groups, tiny_model, make_batch, make_start, tmp_path
) -> None:
    ranks = rank_groups[2]
    other = make_start("other", weight_decay=0.1, advantage="gae")
    run_steps(ranks, tiny_model, other, [make_batch(1), make_batch(2)])
    ranks.call("save", 2)
    policy = ranks.call("full_tensors")[0]
    branch = replace(make_start("mine", learning_rate=2e-3), origin=other.checkpoint_dir)
    run = ranks.call("start_run", branch, 3)[0]
    assert (run.step, run.frontier) == (0, None)
    assert largest_difference(ranks.call("full_tensors")[0], policy) == 0.0
    first = ranks.call("train", make_batch(1), 3, 4)[0]
    assert ranks.call("start_run", branch, 5)[0].step == 0
    assert ranks.call("train", make_batch(1), 5, 6)[0].digests == first.digests
    ranks.call("save", 6)
    shutil.rmtree(other.checkpoint_dir)
    assert ranks.call("start_run", branch, 7)[0].step == 1, "its own checkpoint, by now"
    lost = replace(branch, checkpoint_dir=str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="It holds no checkpoint to begin with"):
        ranks.call("start_run", lost, 8)


def cut(checkpoint: Path) -> None:
    """A disk that lost the end of a file."""
    shard = next(checkpoint.glob("__1_*"))
    os.truncate(shard, shard.stat().st_size - 1)


def flip(checkpoint: Path) -> None:
    """One bit, in the middle of the other rank's tensors."""
    shard = next(checkpoint.glob("__0_*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def lose(checkpoint: Path) -> None:
    (checkpoint / ".metadata").unlink()


def tear(checkpoint: Path) -> None:
    """As after a crash on a file system that keeps no order."""
    (checkpoint / MANIFEST).unlink()


def half(checkpoint: Path) -> None:
    text = (checkpoint / MANIFEST).read_text()
    (checkpoint / MANIFEST).write_text(text[: len(text) // 2])


def test_a_bad_checkpoint_falls_back_to_the_one_before_and_says_why(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks, start = rank_groups[2], make_start()
    harms = {
        cut: "bytes, not",
        flip: "does not hold the bytes that were written",
        lose: "metadata cannot be read: No such file",
        tear: "not written to its end",
        half: "manifest.json is not usable",
    }
    ranks.load(tiny_model, checkpoints_kept=10)
    ranks.call("start_run", start, 0)
    for step in range(len(harms) + 1):
        ranks.call("train", make_batch(step + 1), 0, 1)
        ranks.call("save", 1)
    checkpoints = CheckpointFolder(start.checkpoint_dir).newest_first()
    for harm, checkpoint in zip(harms, checkpoints, strict=False):
        harm(checkpoint)
    run = ranks.call("start_run", start, 9)[0]
    assert run.step == 1
    for why, said, checkpoint in zip(run.refused, harms.values(), checkpoints, strict=False):
        assert why.startswith(f"{checkpoint.name}: ")
        assert said in why
    again = ranks.call("start_run", start, 10)[0]
    assert (again.step, again.refused) == (1, ()), "warned of twice"
    assert (checkpoints[0].parent / f"bad-{checkpoints[0].name}").is_dir(), "what is bad was kept"


def test_without_a_good_checkpoint_the_error_names_each_and_nothing_is_touched(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks, start = rank_groups[1], make_start()
    checkpoints = saved(ranks, start, tiny_model, make_batch, 2)
    lose(checkpoints[0])
    tear(checkpoints[1])
    with pytest.raises(InvalidInput, match=r"step-00000002: \.metadata.*step-00000001: it has no"):
        ranks.call("start_run", start, 3)
    assert CheckpointFolder(start.checkpoint_dir).newest_first() == checkpoints


def test_the_manifest_knows_every_file_and_the_models_own_are_among_them(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks, start = rank_groups[1], make_start()
    (checkpoint,) = saved(ranks, start, tiny_model, make_batch, 1)
    manifest = read_manifest(checkpoint)
    assert set(manifest.files) == {
        str(path.relative_to(checkpoint))
        for path in checkpoint.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    assert {"model/config.json", "model/generation_config.json"} <= set(manifest.files)
    assert (manifest.run_id, manifest.world_size, manifest.model) == ("run", 1, str(tiny_model))


def test_a_checkpoint_that_does_not_fit_the_model_is_refused_by_name(
    rank_groups, tiny_model, tied_model, make_batch, make_start
) -> None:
    ranks, start = rank_groups[2], make_start()
    saved(ranks, start, tied_model, make_batch, 1)
    ranks.load(tiny_model)
    with pytest.raises(InvalidInput, match=r"step-00000001.*do not fit the model.*lm_head"):
        ranks.call("start_run", start, 3)


def test_only_the_newest_checkpoints_stay_and_what_a_killed_save_left_goes(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    start = make_start()
    folder = Path(start.checkpoint_dir)
    (folder / ".writing-step-00000009").mkdir(parents=True)
    (folder / ".removing-step-00000001").mkdir()
    checkpoints = saved(rank_groups[2], start, tiny_model, make_batch, 3)
    assert [path.name for path in checkpoints] == ["step-00000003", "step-00000002"]
    assert sorted(folder.iterdir()) == sorted(checkpoints)


def test_a_save_that_fails_costs_a_checkpoint_and_neither_the_run_nor_the_ones_before(
    rank_groups, tiny_model, make_batch, make_start, tmp_path
) -> None:
    ranks, start = rank_groups[2], make_start()
    checkpoints = saved(ranks, start, tiny_model, make_batch, 1)
    ranks.call("train", make_batch(2), 1, 2)
    ranks.call("limit_files", 4096)
    report = ranks.call("save", 2)[0]
    assert report.saved_step == 1
    assert "checkpoint of step 2 was not written" in report.problem
    assert "File too large" in report.problem
    assert not report.disk_full, "more room would not help"
    ranks.call("limit_files", -1)
    assert list(Path(start.checkpoint_dir).iterdir()) == checkpoints
    assert ranks.call("train", make_batch(3), 2, 3)[0].checkpoint.problem == "", "told twice"
    assert ranks.call("save", 3)[0].saved_step == 3


def test_a_checkpoint_that_finds_no_room_says_so_and_is_written_when_there_is(
    rank_groups, tiny_model, make_batch, make_start, small_disk
) -> None:
    ranks, start = rank_groups[2], make_start("disk/checkpoints")
    (first,) = saved(ranks, start, tiny_model, make_batch, 1)
    size = sum(file.stat().st_size for file in first.rglob("*"))
    filling = fill(small_disk, but=size // 2)
    ranks.call("train", make_batch(2), 1, 2)
    report = ranks.call("save", 2)[0]
    assert (report.saved_step, report.disk_full) == (1, True), report.problem
    filling.unlink()
    filling = fill(small_disk)
    report = ranks.call("save", 2)[0]
    assert (report.saved_step, report.disk_full) == (1, True), report.problem
    filling.unlink()
    assert ranks.call("save", 2)[0] == CheckpointReport(saved_step=2)
