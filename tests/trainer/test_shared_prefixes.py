"""Rows that share prefixes are computed as a tree, and learn what rows apart would."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask
from transformers import Gemma2Config, LlamaConfig, MistralConfig, Qwen3Config

from benchmarks.models import make_model
from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import BatchBuilder, ScoredTrajectory, TrainGroup
from services.trainer.attention.tree_attention import block_mask, by_flex, tree_attention
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.collate import MicroBatch, collate
from services.trainer.batch.prefix_tree import PrefixTree
from services.trainer.batch.shared_prefixes import SharedPrefixes
from services.trainer.batch.step_plan import StepPlan, plan_step
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.model.context_parallel import ALONE
from services.trainer.model.model_check import check_model
from tests.batches import GroupBatch
from tests.trainer.conftest import VOCABULARY, _make_trajectory
from tests.trainer.shared_rows import VOCABULARY as SMALL
from tests.trainer.shared_rows import make_policy
from tests.trainer.test_learner import assert_same_metrics, assert_same_weights, run_steps

SIZES: dict[str, Any] = {
    "vocab_size": SMALL,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
}


def answers(draw: random.Random, vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Answers of one prompt, two of them the same."""
    prompt = tokens(draw, 40, vocabulary)
    several = [(prompt, tokens(draw, count, vocabulary)) for count in (9, 30, 1, 17)]
    return [*several, several[1]]


def turns(draw: random.Random, vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Turns of an episode, each after the answer before it, whose thoughts are left out."""
    history, made = tokens(draw, 12, vocabulary), []
    for _ in range(5):
        answer = tokens(draw, 14, vocabulary)
        made.append((history, answer))
        history = history + answer[5:] + tokens(draw, 6, vocabulary)
    return made


def branches(draw: random.Random, vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Answers that part in their middle, so that tokens of the stem are trained several times."""
    prompt, stem = tokens(draw, 20, vocabulary), tokens(draw, 25, vocabulary)
    fork = stem + tokens(draw, 18, vocabulary)
    ends = [tokens(draw, count, vocabulary) for count in (7, 3, 12, 5)]
    return [
        (prompt, start + end) for start, end in zip((stem, fork, fork, stem), ends, strict=True)
    ]


def chain(draw: random.Random, vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Turns that keep everything: each row is the beginning of the next."""
    whole = tokens(draw, 50, vocabulary)
    return [(whole[:start], whole[start : start + 10]) for start in (10, 20, 40)]


CASES = {"answers": answers, "turns": turns, "branches": branches, "chain": chain}


def tokens(draw: random.Random, count: int, vocabulary: int) -> list[int]:
    return [draw.randrange(vocabulary) for _ in range(count)]


def batch_of(names: Sequence[str], vocabulary: int = SMALL, step: int = 1) -> GroupBatch:
    """A group for each case, with masks, rewards and several policy versions."""
    draw = random.Random(f"{names}{step}")
    groups = []
    for group_id, name in enumerate(names):
        members = []
        for prompt, answer in CASES[name](draw, vocabulary):
            cut = len(answer) // 2
            trajectory = _make_trajectory(
                prompt,
                answer,
                [draw.gauss(-5.0, 0.5) for _ in answer],
                mask=[1] + [int(draw.random() < 0.8) for _ in answer[1:]],
                spans=[(0, 0, cut), (step - 1, cut, len(answer))] if cut else None,
            )
            members.append(ScoredTrajectory(trajectory=trajectory, reward=draw.random()))
        groups.append(TrainGroup(group_id=group_id, trajectories=tuple(members)))
    return GroupBatch(run_id="run", step=step, groups=tuple(groups))


def planned(names: Sequence[str], **limits: Any) -> StepPlan:
    settings = {"world_size": 1, "max_tokens": 100_000, "shares": True} | limits
    return plan_step(
        batch_of(names).built,
        AlgorithmConfig(),
        seed="0/1",
        limits=PassLimits(**settings),
        vocabulary=SMALL,
    )


def micro_of(names: Sequence[str]) -> MicroBatch:
    ((rows,),) = planned(names).part(0).micro_batches()
    return collate(rows, 3)


def learned(policy: Any, micro: MicroBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logprobs, entropies and gradients of a loss in which rows weigh a token differently."""
    policy.zero_grad()
    logprobs, entropies = policy(micro, 0.8, "gradient")
    loss = (logprobs * micro.advantage).sum() + (logprobs.exp() * micro.behaviour).sum()
    (loss + (entropies.square() * micro.advantage).mean()).backward()
    gradients = {name: one.grad.clone() for name, one in policy.named_parameters()}
    return logprobs.detach(), entropies.detach(), gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("names", [*([name] for name in CASES), list(CASES)], ids="+".join)
def test_losses_and_gradients_are_those_of_rows(names, checkpointing, dtype) -> None:
    micro = micro_of(names)
    assert micro.tree is not None
    policy = make_policy(Qwen3Config(**SIZES), ALONE).to(dtype)
    expected = learned(policy, replace(micro, tree=None))
    if checkpointing:
        kwargs = {"use_reentrant": False}
        policy.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        policy.causal.train()
    found = learned(policy, micro)
    tolerance = 1e-6 if dtype == torch.float64 else 1e-5
    for one, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    for name, gradient in expected[2].items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            found[2][name], gradient, rtol=tolerance, atol=tolerance * max(1.0, scale), msg=name
        )


def test_each_distinct_beginning_is_computed_once() -> None:
    for name in ("turns", "branches", "chain"):
        tree = micro_of([name]).tree
        assert tree is not None
        rows = [
            prompt + answer for prompt, answer in CASES[name](random.Random(f"['{name}']1"), SMALL)
        ]
        distinct = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
        assert len(tree.input_ids) == len(distinct)
        assert len(tree.at) == sum(map(len, rows))


def test_a_chain_of_turns_is_one_segment() -> None:
    tree = micro_of(["chain"]).tree
    assert tree is not None
    assert tree.segments.lengths == (50,)
    assert tree.branched == []


def test_a_prefix_that_saves_little_is_computed_in_each_row() -> None:
    rows = [[7, *tokens(random.Random(one), 200, SMALL)] for one in range(4)]
    builder = BatchBuilder(run_id="run", step=1)
    members = tuple(
        ScoredTrajectory(trajectory=_make_trajectory(row[:1], row[1:]), reward=0.0) for row in rows
    )
    builder.add(TrainGroup(group_id=0, trajectories=members))
    batch = builder.batch()
    assert not SharedPrefixes.of(batch.rows, np.arange(4), np.zeros(4, dtype=np.int64)).shared.any()


@pytest.mark.parametrize("max_tokens", [120, 200, 1000])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_micro_batches_of_trees_hold_every_row_once_and_fit(world_size, max_tokens) -> None:
    plan = planned([*CASES, *CASES], world_size=world_size, max_tokens=max_tokens)
    parts = [plan.part(rank) for rank in range(world_size)]
    assert len({len(one.minibatches[0].micro_batches) for one in parts}) == 1
    assert sorted(place for one in parts for place in one.rows.place.tolist()) == list(range(34))
    saved = 0
    for rows in (rows for part in parts for several in part.micro_batches() for rows in several):
        micro = collate(rows, 3)
        computed = micro.input_ids if micro.tree is None else micro.tree.input_ids
        assert len(computed) <= max_tokens or len(rows) == 1
        assert micro.tree is None or torch.equal(computed[micro.tree.at], micro.input_ids)
        saved += int(rows.shared.sum())
    assert plan.shared_fraction() == saved / sum(plan.prefixes.lengths) > 0


def test_ranks_are_loaded_evenly_before_what_is_shared_is_kept_together() -> None:
    plan = planned(["answers"], world_size=2)  # 40 + 87 tokens: a rank alone would have them all
    loads = [
        int(part.rows.tokens.lengths.sum() - part.rows.shared.sum())
        for part in (plan.part(0), plan.part(1))
    ]
    assert max(loads) < 100
    assert sum(loads) < 200 < 287


CONFIGS: dict[str, Any] = {
    "preset": {"preset": "grpo", "ratio_anchor": "proximal", "minibatches": 2},
    "critic": {"preset": "ppo", "critic": {"learning_rate": 1e-3}, "entropy_bonus": 0.1},
    "reference": {"preset": "gspo", "kl": {"coefficient": 0.5}},
}


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_steps_of_two_ranks_are_those_without_shared_prefixes(
    rank_groups, tiny_model, make_start, algorithm
) -> None:
    start = make_start(**CONFIGS[algorithm])
    batches = [batch_of(list(CASES), VOCABULARY, step) for step in (1, 2)]
    expected = run_steps(rank_groups[1], tiny_model, start, batches, shared_prefixes="off")
    found = run_steps(
        rank_groups[2],
        tiny_model,
        start,
        batches,
        shared_prefixes="on",
        activation_checkpointing=True,
        micro_batch_tokens=150,
    )
    for one, other in zip(found[0], expected[0], strict=True):
        assert_same_metrics(one.metrics, other.metrics)
        assert one.metrics["grad_norm"] > 0
    assert_same_weights(found[1], expected[1])


def test_an_adapter_learns_the_same(rank_groups, tiny_model, make_start) -> None:
    found = []
    for shared in ("off", "on"):
        lora = LoraConfig(rank=3, alpha=12.0)
        rank_groups[2].load(tiny_model, lora=lora, shared_prefixes=shared)
        rank_groups[2].call("start_run", make_start(kl={"coefficient": 0.2}), 0)
        batches = [batch_of(list(CASES), VOCABULARY, step) for step in (1, 2)]
        reports = [rank_groups[2].call("train", one, 0, one.step)[0] for one in batches]
        found.append([report.metrics for report in reports])
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=2e-5, abs=1e-6)


def parts_of(tree: PrefixTree) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    sizes = ((4, 16), (2, 16), (2, 16))
    return [
        torch.randn(len(tree.place), *size, generator=made, dtype=torch.float64) for size in sizes
    ]


@pytest.mark.parametrize("names", [["answers"], [*CASES, *CASES]], ids=["one block", "more blocks"])
def test_flex_attention_sees_what_the_parts_on_the_cpu_see(names) -> None:
    tree = micro_of(names).tree
    assert tree is not None
    query, key, value = parts_of(tree)  # torch has no backward pass of it on the CPU
    expected = tree_attention(query, key, value, tree, 0.3)
    torch.testing.assert_close(by_flex(query, key, value, tree, 0.3), expected)


@pytest.mark.parametrize("names", [["answers"], [*CASES, *CASES]], ids=["one block", "more blocks"])
def test_flex_attention_has_the_gradients_of_the_parts_on_the_cpu(names, monkeypatch) -> None:
    # On the CPU torch has no kernel for it and refuses, but it has the formulas.
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    tree = micro_of(names).tree
    assert tree is not None
    found = []
    for attend in (tree_attention, by_flex):
        parts = [one.requires_grad_() for one in parts_of(tree)]
        out = attend(*parts, tree, 0.3)
        weights = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).sin()
        found.append(torch.autograd.grad((out * weights).sum(), parts))
    for one, expected in zip(*found, strict=True):
        torch.testing.assert_close(one, expected)
        assert expected.abs().max() > 0.1


def random_tree(seed: int) -> tuple[PrefixTree, Tensor]:
    """Rows of which each begins as the one before, and which tokens each token sees in one."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 260) for _ in range(12)]
    shared = [0, *(draw.randint(0, min(both)) for both in pairwise(lengths))]
    tree = PrefixTree.of(np.zeros(sum(lengths), np.int32), lengths, shared)
    sees = torch.zeros(len(tree.place), len(tree.place), dtype=torch.bool)
    for path in tree.at.split(lengths):
        sees[path[:, None], path] = torch.ones(len(path), len(path), dtype=torch.bool).tril()
    return tree, sees


def blocks_of(counts: Tensor, indexes: Tensor) -> list[set[int]]:
    return [
        set(row[:count].tolist())
        for count, row in zip(counts[0, 0].tolist(), indexes[0, 0], strict=True)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_the_mask_of_a_random_tree_is_what_its_rows_see(seed) -> None:
    tree, sees = random_tree(seed)
    mask, place = block_mask(tree), torch.arange(len(sees))
    none = torch.tensor(0)
    assert torch.equal(mask.mask_mod(none, none, place[:, None], place[None]), sees)
    # What lies behind the sequence is seen by nothing and sees nothing.
    blocks = -(-len(sees) // 128)
    padded = torch.nn.functional.pad(sees, (0, blocks * 128 - len(sees)) * 2)
    by_block = padded.reshape(blocks, 128, blocks, 128).transpose(1, 2).flatten(2)
    full, some = by_block.all(-1), by_block.any(-1) & ~by_block.all(-1)
    for wanted, keys, queries in (
        (some, (mask.kv_num_blocks, mask.kv_indices), (mask.q_num_blocks, mask.q_indices)),
        (
            full,
            (mask.full_kv_num_blocks, mask.full_kv_indices),
            (mask.full_q_num_blocks, mask.full_q_indices),  # which the backward pass reads
        ),
    ):
        assert blocks_of(*keys) == [set(row.nonzero()[:, 0].tolist()) for row in wanted]
        assert blocks_of(*queries) == [set(row.nonzero()[:, 0].tolist()) for row in wanted.T]


def test_the_mask_of_blocks_is_that_of_pairs() -> None:
    tree = micro_of([*CASES, *CASES]).tree
    assert tree is not None
    size, mask = len(tree.place), block_mask(tree)
    assert size > 3 * 128
    last = torch.nn.functional.pad(tree.last, (0, 128))
    expected = create_block_mask(
        lambda b, h, q, k: (k <= q) & (q < last[k]), None, None, size, size, device="cpu"
    )
    assert torch.equal(mask.to_dense(), expected.to_dense())


def test_a_token_of_several_rows_counts_in_each_for_the_routers_balance(
    rank_groups, tmp_path, make_start
) -> None:
    folder = make_model(
        tmp_path / "m", (32, 16, 2, 2, 1, 16), vocabulary=VOCABULARY, experts=(4, 2)
    )
    start, batches = make_start(router_aux_loss_coef=0.1), [batch_of(list(CASES), VOCABULARY)]
    apart, tree = (
        run_steps(rank_groups[1], folder, start, batches, shared_prefixes=shared)[0][0].metrics
        for shared in ("off", "on")
    )
    assert tree == pytest.approx(apart, rel=1e-5, abs=1e-6)
    assert tree["router_aux_loss"] > 0


def scoring(hugging_face: Any, **settings: Any) -> bool:
    return check_model(TrainerConfig(model="m", **settings), hugging_face).shares


def test_models_whose_tokens_do_not_see_all_before_them_are_computed_in_rows() -> None:
    windows = MistralConfig(**SIZES, sliding_window=9)
    assert scoring(LlamaConfig(**SIZES))
    assert not scoring(windows)
    assert not scoring(Gemma2Config(**SIZES))  # is padded
    with pytest.raises(InvalidInput, match="does not see all tokens before one"):
        scoring(windows, shared_prefixes="on")


def test_rows_are_computed_apart_where_that_is_asked_for_or_not_known_to_work() -> None:
    model = LlamaConfig(**SIZES)
    assert not scoring(model, shared_prefixes="off")
    assert not scoring(model, packing="off")
    assert not scoring(model, context_parallel=2)
    assert not scoring(model, device="cuda")
    assert scoring(model, device="cuda", shared_prefixes="on")
    for other in ({"packing": "off"}, {"context_parallel": 2}):
        with pytest.raises(ValueError, match="shared_prefixes: on needs packed rows"):
            TrainerConfig(model="m", shared_prefixes="on", **other)
