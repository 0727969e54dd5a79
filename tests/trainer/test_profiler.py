"""torch's profiler over the steps of real ranks."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.protocol.run.profile import ProfileRequest, RankProfile
from services.protocol.trainer import RunStart
from services.trainer.heartbeat import HEARTBEAT
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
    # Both clocks are read one after the other, and a busy machine may run others in between.
    assert told.recorded_seconds == pytest.approx(told.seconds, rel=0.1)
    assert sum(told.phases.values()) == pytest.approx(told.seconds)
    assert {"forward_backward", "optimizer", "snapshot", "between"} == told.phases.keys()
    assert all(told.kinds[kind] > 0 for kind in ("matmul", "optimizer", "other"))
    assert list(told.operators.values()) == sorted(told.operators.values(), reverse=True)
    assert "aten::mm" in names_in(told.trace)


def names_in(trace: str) -> Counter[str]:
    with gzip.open(trace) as file:
        return Counter(one.get("name") for one in json.load(file)["traceEvents"])


def test_of_many_micro_batches_the_first_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler.dist, "get_rank", lambda: 0)
    asked = profiler.StepProfiler("cpu")
    asked.ask(ProfileRequest(run_id="run", folder=str(tmp_path), steps=4))
    numbers = torch.ones(2)
    for step in range(1, 5):
        asked.before_step()
        for phase, work in (("scoring", numbers.tan), ("micro-batch", numbers.sin)):
            for done in range(1, 11):
                HEARTBEAT.enter(phase, done, 10)
                work()
        HEARTBEAT.enter("optimizer")
        numbers.cos()
        asked.after_step(step, {})
    table = RankProfile.model_validate_json((tmp_path / "rank0.json").read_text())
    names = names_in(table.trace)
    assert names["aten::tan"] == names["aten::sin"] == profiler.MOST_PASSES
    assert names["aten::cos"] == 4
    assert table.recorded_seconds < table.seconds
    assert sum(table.kinds.values()) == pytest.approx(table.recorded_seconds)


def test_what_another_run_was_asked_for_is_dropped(
    rank_groups: Any,
    tiny_model: Path,
    make_start: Callable[..., RunStart],
    make_batch: Callable[..., Any],
    tmp_path: Path,
) -> None:
    ranks = rank_groups[1]
    ranks.load(tiny_model)
    for trained in (0, 1):  # it waits, or is under way
        ranks.call("start_run", make_start(), 0)
        folder = tmp_path / str(trained)
        ranks.call("profile", ProfileRequest(run_id="run", folder=str(folder), steps=2))
        for step in range(1, trained + 1):
            ranks.call("train", make_batch(step), step - 1, step)
        ranks.call("start_run", make_start(f"other-{trained}"), 0)
        for step in (1, 2, 3):
            ranks.call("train", make_batch(step), step - 1, step)
        assert not folder.exists()


@pytest.mark.parametrize(
    ("limit", "told"), [("free_bytes", "7 MiB are free"), ("MOST_EVENTS", "profile fewer steps")]
)
def test_a_trace_without_space_or_of_too_many_events_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, told: str
) -> None:
    monkeypatch.setattr(profiler.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(profiler, limit, 0 if limit == "MOST_EVENTS" else lambda _: 7 << 20)
    asked = profiler.StepProfiler("cpu")
    asked.ask(ProfileRequest(run_id="run", folder=str(tmp_path), steps=1))
    asked.before_step()
    torch.ones(2) + 1
    asked.after_step(1, {})
    (file,) = tmp_path.iterdir()
    table = RankProfile.model_validate_json(file.read_text())
    assert told in table.problem
    assert table.trace == ""
    assert bool(table.operators) == (limit == "free_bytes")
