"""A large train batch, planned, sent to ranks through Ray's object store and taken apart there.

    python -m benchmarks.train_batch [--tokens 67108864] [--ranks 8] [--json]

Ours is what a train step does before its first forward pass: the leading process plans and cuts
a part for each rank, a rank (a Ray actor) gets its part and lays out all micro-batches as tensors.
The peer is the same batch as tuples of Python numbers, whole in every rank, which then lays out its
own rows: the way before. It is measured with fewer tokens in the same run. CPU seconds are those of
all threads of a process, memory is the peak of its resident set above what it held before, pages
of the object store included. Bytes on the wire are the sizes of objects in the store.
"""

import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.experimental import get_object_locations

from benchmarks.report import MIB, Bar, machine, options_of, show, write
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import (
    BatchBuilder,
    ScoredTrajectory,
    TokenRows,
    TrainBatch,
    TrainGroup,
)
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.rank_batch import RankBatch
from services.trainer.batch.step_plan import plan_step

GROUP_SIZE, PROMPT, LONGEST = 16, 128, 16_384
VOCABULARY = 151_936
MICRO_BATCH_TOKENS = 16_384
ATTENTION = 1.95e-5
"""`attention_share` of Qwen3-8B."""
Figures = dict[str, float]


def lengths_of(tokens: int) -> list[int]:
    """Answers' lengths as in RL, of whole groups with about so many tokens, prompts included."""
    draw, lengths, left = random.Random(0), list[int](), tokens
    while left > 0 or len(lengths) % GROUP_SIZE:
        lengths.append(min(LONGEST, max(16, int(draw.lognormvariate(6.8, 1.0)))))
        left -= PROMPT + lengths[-1]
    return lengths


def batch_of(tokens: int) -> TrainBatch:
    """A batch of random ids, laid out at once."""
    draw, answer = np.random.default_rng(0), np.array(lengths_of(tokens), dtype=np.int32)
    rows, held = len(answer), int(answer.sum())
    mask_bytes = -(-answer.astype(np.int64) // 8)
    mask = np.full(int(mask_bytes.sum()), 255, dtype=np.uint8)
    ends = np.cumsum(mask_bytes) - 1
    mask[ends] = (255 << (-answer % 8)) & 255
    return TrainBatch(
        run_id="bench",
        step=1,
        rows=TokenRows(
            ids=draw.integers(VOCABULARY, size=held + PROMPT * rows, dtype=np.int32),
            logprobs=draw.standard_normal(held, dtype=np.float32),
            mask=mask,
            prompt=np.full(rows, PROMPT, dtype=np.int32),
            answer=answer,
            spans=np.ones(rows, dtype=np.int32),
            span_version=np.zeros(rows, dtype=np.int32),
            span_tokens=answer,
            turns=np.zeros(rows, dtype=np.int32),
            turn_tokens=np.zeros(0, dtype=np.int32),
            turn_return=np.zeros(0),
        ),
        group_ids=np.arange(rows // GROUP_SIZE),
        group_sizes=np.full(rows // GROUP_SIZE, GROUP_SIZE, dtype=np.int32),
        rewards=draw.random(rows),
        named=np.zeros((rows, 0)),
        stale_tokens=np.zeros(rows, dtype=np.int32),
        truncated=np.zeros(rows, dtype=np.bool_),
        given=np.zeros(rows, dtype=np.bool_),
    )


def groups_of(batch: TrainBatch) -> tuple[TrainGroup, ...]:
    """The same as tuples of Python numbers."""
    made: list[ScoredTrajectory] = []
    rows = batch.rows.split([1] * len(batch.rows))
    for row, reward in zip(rows, batch.rewards.tolist(), strict=True):
        length = int(row.answer[0])
        trajectory = Trajectory(
            prompt_token_ids=tuple(row.ids[:PROMPT].tolist()),
            response_token_ids=tuple(row.ids[PROMPT:].tolist()),
            behaviour_logprobs=tuple(row.logprobs.tolist()),
            loss_mask=(1,) * length,
            spans=(PolicySpan(version=0, start=0, end=length, replica_id="replica"),),
            finish_reason="stop",
            text="",
        )
        made.append(ScoredTrajectory(trajectory=trajectory, reward=reward))
    return tuple(
        TrainGroup(group_id=first, trajectories=tuple(made[first : first + GROUP_SIZE]))
        for first in range(0, len(made), GROUP_SIZE)
    )


@contextmanager
def measured() -> Iterator[Figures]:
    """CPU and wall seconds of this process and its peak memory above that of now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    found: Figures = {}
    before, cpu, wall = _resident("VmHWM"), _cpu(), time.perf_counter()
    yield found
    found["cpu_s"], found["wall_s"] = _cpu() - cpu, time.perf_counter() - wall
    found["mib"] = _resident("VmHWM") - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith(name))
    return int(line.split()[1]) / 1024


class Rank:
    """The part of a trainer rank that takes a batch apart."""

    def ready(self) -> None:
        """Import what a rank has imported long before its first batch."""
        from services.trainer.batch.collate import collate

        part = plan_step(
            batch_of(1000),
            AlgorithmConfig(),
            seed="",
            limits=PassLimits(world_size=1, max_tokens=1024),
            vocabulary=VOCABULARY,
        ).part(0)
        _ = [collate(rows, 0) for several in part.micro_batches() for rows in several]

    def arrays(self, reference: list["ray.ObjectRef[RankBatch]"]) -> Figures:
        """Get a part and lay out its micro-batches, all held at a time as a train step does."""
        from services.trainer.batch.collate import collate

        with measured() as found:
            part: RankBatch = ray.get(reference[0])
            work = [collate(rows, 0) for several in part.micro_batches() for rows in several]
        return found | {"micro_batches": len(work), "tokens": len(part.rows.tokens.ids)}

    def tuples(self, reference: list[Any], ranks: int) -> Figures:
        """Get a whole batch of tuples and lay out every `ranks`-th row."""
        import torch

        with measured() as found:
            groups: tuple[TrainGroup, ...] = ray.get(reference[0])
            rows = [one.trajectory for group in groups for one in group.trajectories]
            work = []
            for one in rows[::ranks]:
                trained = [i for i, keep in enumerate(one.loss_mask) if keep]
                work.append(
                    (
                        torch.tensor(one.prompt_token_ids + one.response_token_ids),
                        torch.tensor([len(one.prompt_token_ids) + i - 1 for i in trained]),
                        torch.tensor([one.response_token_ids[i] for i in trained]),
                        torch.tensor([one.behaviour_logprobs[i] for i in trained]),
                    )
                )
        return found


def of_arrays(actor: Any, tokens: int, ranks: int) -> dict[str, Any]:
    """Plan, send and take apart: figures of the leading process and of every rank."""
    sent = ray.put(batch_of(tokens))
    wire = size_of(sent)
    limits = PassLimits(world_size=ranks, max_tokens=MICRO_BATCH_TOKENS, attention=ATTENTION)
    with measured() as lead:
        batch: TrainBatch = ray.get(sent)
        plan = plan_step(batch, AlgorithmConfig(), seed="0/1", limits=limits, vocabulary=VOCABULARY)
    count, held = len(batch.rows.ids), batch.rows.nbytes
    parts, of_ranks = [], []
    for rank in range(ranks):
        with measured() as cutting:
            reference = ray.put(plan.part(rank))
        lead = {
            name: max(lead[name], cutting[name]) if name == "mib" else lead[name] + cutting[name]
            for name in lead
        }
        parts.append(size_of(reference))
        of_ranks.append(ray.get(actor.arrays.remote([reference])))
        del reference
    return {
        "tokens": count,
        "rows": len(batch.rows),
        "lead": lead,
        "ranks": of_ranks,
        "wire_bytes_a_token": wire / count,
        "wire_bytes_of_parts_a_token": sum(parts) / count,
        "memory_bytes_a_token": held / count,
    }


def of_tuples(actor: Any, tokens: int, ranks: int) -> dict[str, Any]:
    """The way before, and what laying its tuples into arrays costs the orchestrator."""
    batch = batch_of(tokens)
    groups = groups_of(batch)
    count = len(batch.rows.ids)
    with measured() as building:
        builder = BatchBuilder(run_id="bench", step=1)
        for group in groups:
            builder.add(group)
        built = builder.batch()
    assert np.array_equal(built.rows.mask, batch.rows.mask)
    with measured() as sending:
        reference = ray.put(groups)
    rank = ray.get(actor.tuples.remote([reference], ranks))
    return {
        "tokens": count,
        "wire_bytes_a_token": size_of(reference) / count,
        "memory_bytes_a_token": rank["mib"] * MIB / count,
        "rank_cpu_ns_a_token": 1e9 * rank["cpu_s"] / count,
        "send_cpu_ns_a_token": 1e9 * sending["cpu_s"] / count,
        "build_cpu_ns_a_token": 1e9 * building["cpu_s"] / count,
    }


def size_of(reference: Any) -> int:
    """Bytes of an object in the store."""
    return int(get_object_locations([reference])[reference]["object_size"])


def bars_of(arrays: dict[str, Any], tuples: dict[str, Any]) -> list[Bar]:
    """What must hold; the peer's CPU of a rank is that of as many tokens."""
    cpu = max(one["cpu_s"] for one in arrays["ranks"])
    peer = 1e-9 * tuples["rank_cpu_ns_a_token"] * arrays["tokens"]
    worst = max(arrays["wire_bytes_a_token"], arrays["wire_bytes_of_parts_a_token"])
    return [
        Bar(name="CPU seconds of a rank", found=cpu, limit=2.0, at_most=True),
        Bar(
            name="MiB of a rank",
            found=max(one["mib"] for one in arrays["ranks"]),
            limit=1024.0,
            at_most=True,
        ),
        Bar(name="bytes a token on the wire", found=worst, limit=10.0, at_most=True),
        Bar(
            name="bytes a token in memory",
            found=arrays["memory_bytes_a_token"],
            limit=10.0,
            at_most=True,
        ),
        Bar(name="CPU of a rank with tuples over ours", found=peer / cpu, limit=10.0),
    ]


def main() -> None:
    """Measure, print, and write the figures if asked."""
    options = options_of(
        __doc__, "train_batch", tokens=1 << 26, ranks=8, tuples=(1 << 20, "tokens of the peer")
    ).parse_args()
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=24 * options.tokens + 500 * MIB,
        logging_level=40,
    )
    make: Callable[..., Any] = ray.remote(num_cpus=0)
    actor = make(Rank).remote()
    ray.get(actor.ready.remote())
    tuples = of_tuples(actor, options.tuples, options.ranks)
    arrays = of_arrays(actor, options.tokens, options.ranks)
    ray.shutdown()
    bars = bars_of(arrays, tuples)
    print_figures(arrays, tuples, bars)
    found = [{"name": one.name, "found": one.found, "bar": one.limit} for one in bars]
    write(options.json, {**machine(), "arrays": arrays, "tuples": tuples, "bars": found})


def print_figures(arrays: dict[str, Any], tuples: dict[str, Any], bars: list[Bar]) -> None:
    """Tables of both ways, and the bars."""
    rows = [
        (name, f"{one['cpu_s']:.2f}", f"{one['wall_s']:.2f}", f"{one['mib']:.0f}")
        for name, one in [
            ("leading process", arrays["lead"]),
            *((f"rank {i}", one) for i, one in enumerate(arrays["ranks"])),
        ]
    ]
    show(("process", "CPU s", "wall s", "MiB"), rows, title=f"{arrays['tokens']:,} tokens")
    show(
        ("as tuples, a token", "value"),
        [(name, f"{value:,.1f}") for name, value in tuples.items()],
    )
    show(
        ("bar", "wanted", "found"),
        [(one.name, f"{one.limit:g}", f"{one.found:.2f}") for one in bars],
    )


if __name__ == "__main__":
    main()
