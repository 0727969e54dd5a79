"""torch's profiler over the steps of real ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from services.protocol.run.profile import ProfileRequest, RankProfile
from services.protocol.trainer import RunStart
from services.trainer.step import profiler
from services.trainer.step.profiler import kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matmul"),
        ("ampere_bf16_s16816gemm_bf16_128x128", "matmul"),
        ("void pytorch_flash::flash_fwd_kernel", "attention"),
        ("aten::_softmax", "attention"),
        ("aten::_log_softmax", "other"),
        ("ncclDevKernel_AllGather_RING_LL", "collectives"),
        ("record_param_comms", "collectives"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::copy_", "other"),
    ],
)
def test_operators_are_sorted_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_chosen_rank_leaves_a_trace_and_where_its_time_went(
    rank_groups: Any,
    tiny_model: Path,
    make_start: Callable[..., RunStart],
    make_batch: Callable[..., Any],
    tmp_path: Path,
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(), 0)
    folder = tmp_path / "profiles" / "step-00000001"
    request = ProfileRequest(run_id="run", folder=str(folder), steps=2, ranks=(1,))
    ranks.call("profile", request)
    for step in (1, 2, 3):
        assert folder.exists() == (step == 3)
        ranks.call("train", make_batch(step), step - 1, step)
    assert {path.name for path in folder.iterdir()} == {"rank1.json", "rank1.trace.json.gz"}
    told = RankProfile.model_validate_json((folder / "rank1.json").read_text())
    assert (told.rank, told.steps, told.last_step, told.problem) == (1, 2, 2, "")
    assert sum(told.phases.values()) == pytest.approx(told.seconds)
    assert {"forward_backward", "optimizer", "snapshot", "between"} == told.phases.keys()
    assert all(told.kinds[kind] > 0 for kind in ("matmul", "optimizer", "other"))
    assert any("mm" in name for name in told.operators)


def test_a_trace_without_space_or_of_too_many_events_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as done:
        torch.ones(2) + 1
    assert profiler._problem(tmp_path, done) == ""
    monkeypatch.setattr(profiler, "free_bytes", lambda _: 7 << 20)
    assert profiler._problem(tmp_path, done).startswith("7 MiB are free")
    monkeypatch.setattr(profiler, "MOST_EVENTS", 0)
    assert "profile fewer steps" in profiler._problem(tmp_path, done)
