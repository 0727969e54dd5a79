"""Plans of minibatches and micro-batches."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from services.trainer.batch.batching import (
    Minibatch,
    PassLimits,
    plan_microbatches,
    plan_minibatches,
    row_cost,
)
from services.trainer.batch.shared_prefixes import SharedPrefixes
from services.trainer.model.attention_share import attention_share


def lengths(count: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(1, 60) for _ in range(count)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_row_is_planned_exactly_once(world_size: int) -> None:
    plan = plan_microbatches(lengths(41), PassLimits(world_size=world_size, max_tokens=128))
    assert sorted(row for rank in plan for micro in rank for row in micro) == list(range(41))


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_all_ranks_run_the_same_number_of_passes(count: int) -> None:
    plan = plan_microbatches(lengths(count), PassLimits(world_size=3, max_tokens=64))
    assert len({len(rank) for rank in plan}) == 1
    assert all(any(rank[i] for rank in plan) for i in range(len(plan[0])))  # no pass for nothing


@pytest.mark.parametrize("padded", [True, False])
def test_a_row_above_the_budget_stands_alone(padded: bool) -> None:
    sizes = [*lengths(30), 500]
    plan = plan_microbatches(sizes, PassLimits(world_size=2, max_tokens=100, padded=padded))
    assert [micro for rank in plan for micro in rank if 30 in micro] == [(30,)]


def test_packed_microbatches_fit_and_are_as_few_as_can_be() -> None:
    sizes = lengths(200)
    plan = plan_microbatches(sizes, PassLimits(world_size=3, max_tokens=256))
    loads = [sum(sizes[row] for row in micro) for rank in plan for micro in rank]
    assert max(loads) <= 256
    assert len(plan[0]) <= 1 + sum(sizes) // (3 * 256) + 1


def test_ranks_wait_little_for_each_other_in_every_pass() -> None:
    sizes = lengths(200)
    for micros in zip(
        *plan_microbatches(sizes, PassLimits(world_size=4, max_tokens=512)), strict=True
    ):
        loads = [sum(sizes[row] for row in micro) for micro in micros]
        assert min(loads) > 0.95 * max(loads)


def test_padded_microbatches_fit() -> None:
    sizes = [*lengths(30), 500]
    for rank in plan_microbatches(sizes, PassLimits(world_size=2, max_tokens=100, padded=True)):
        for micro in rank:
            padded = len(micro) * max((sizes[row] for row in micro), default=0)
            assert padded <= 100 or len(micro) == 1


def test_tokens_are_balanced_over_ranks() -> None:
    sizes = lengths(64)
    loads = [
        sum(sizes[row] for micro in rank for row in micro)
        for rank in plan_microbatches(sizes, PassLimits(world_size=4, max_tokens=4096))
    ]
    assert max(loads) - min(loads) <= max(sizes)


def sizes_of(count: int) -> tuple[SharedPrefixes, list[int], list[bool]]:
    """Rows, how many of their tokens are trained, and that no answer is given."""
    rows = SharedPrefixes.none(np.array([2 + i % 9 for i in range(count)]))
    return rows, [1 + i % 9 for i in range(count)], [False] * count


def test_minibatches_and_their_denominators_do_not_depend_on_ranks() -> None:
    rows, trained, given = sizes_of(37)

    def made(world_size: int, max_tokens: int, attention: float = 0.0) -> tuple[Minibatch, ...]:
        limits = PassLimits(world_size=world_size, max_tokens=max_tokens, attention=attention)
        return plan_minibatches(rows, trained, given, count=3, seed="0/1", limits=limits)

    def plan(*limits: Any) -> list[tuple[int, list[int]]]:
        return [
            (one.tokens, sorted(r for rank in one.ranks for micro in rank for r in micro))
            for one in made(*limits)
        ]

    for minibatch in made(2, 20):
        assert minibatch.sequences == sum(len(m) for rank in minibatch.ranks for m in rank)
    assert plan(1, 1000) == plan(2, 20) == plan(5, 7) == plan(2, 20, 0.5)
    assert sum(tokens for tokens, _ in plan(1, 1000)) == sum(trained)
    assert sorted(row for _, chosen in plan(1, 1000) for row in chosen) == list(range(37))


def test_another_seed_makes_another_split() -> None:
    limits = PassLimits(world_size=1, max_tokens=1000)
    first, second = (
        plan_minibatches(*sizes_of(20), count=2, seed=seed, limits=limits)
        for seed in ("0/1", "0/2")
    )
    assert set(first[0].ranks[0][0]) != set(second[0].ranks[0][0])


def test_fewer_rows_than_minibatches_make_fewer_minibatches() -> None:
    limits = PassLimits(world_size=2, max_tokens=100)
    plan = plan_minibatches(*sizes_of(2), count=5, seed="0/1", limits=limits)
    assert len(plan) == 2
    assert all(minibatch.tokens > 0 for minibatch in plan)


def costs_of_passes(sizes: list[int], limits: PassLimits, attention: float) -> list[list[float]]:
    """Of each pass what each rank's micro-batch costs."""
    plan = plan_microbatches(sizes, limits)
    return [
        [sum(row_cost(sizes[row], attention) for row in micro) for micro in micros]
        for micros in zip(*plan, strict=True)
    ]


@pytest.mark.parametrize("attention", [0.001, 0.01])
def test_ranks_wait_little_for_each_other_where_attention_dominates(attention: float) -> None:
    draw = random.Random(0)
    sizes = [min(4000, max(8, int(draw.lognormvariate(5.5, 1.2)))) for _ in range(400)]
    limits = PassLimits(world_size=4, max_tokens=4096, attention=attention)
    waited, blind = (
        sum(max(costs) for costs in found) / (sum(map(sum, found)) / 4)
        for found in (
            costs_of_passes(sizes, limits, attention),
            costs_of_passes(sizes, replace(limits, attention=0.0), attention),
        )
    )
    assert waited < 1.1
    assert waited < blind
    for rank in plan_microbatches(sizes, limits):
        assert all(sum(sizes[row] for row in micro) <= 4096 for micro in rank)


def test_rows_of_a_length_that_fills_no_pass_take_few_passes() -> None:
    limits = PassLimits(world_size=8, max_tokens=8192)
    plan = plan_microbatches([1000] * 6400, limits)
    assert len(plan[0]) == 100  # 8 rows each


def test_the_cost_of_a_row_is_what_its_multiplications_are() -> None:
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM._from_config(config, attn_implementation="eager")
    share = attention_share(model)

    def counted(length: int) -> int:
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, length, dtype=torch.long))
        return counter.get_total_flops()

    # Eager attention multiplies all pairs of tokens, causal attention half of them.
    for length in (64, 512):
        full = row_cost(length, 2 * share) / row_cost(64, 2 * share)
        assert counted(length) / counted(64) == pytest.approx(full, rel=0.01)
