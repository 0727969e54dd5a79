"""Rows that share prefixes are computed as a tree, and learn what rows apart would."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from transformers import Gemma2Config, LlamaConfig, MistralConfig, Qwen3Config

from services.protocol.errors import InvalidInput
from services.protocol.train_batch import BatchBuilder, ScoredTrajectory, TrainBatch, TrainGroup
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.collate import MicroBatch, collate
from services.trainer.batch.prefix_tree import PrefixTree
from services.trainer.batch.rank_batch import Rows
from services.trainer.batch.shared_prefixes import SharedPrefixes
from services.trainer.batch.step_plan import StepPlan, plan_step
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.model.context_parallel import ALONE
from services.trainer.model.model_check import check_model
from services.trainer.model.tree_attention import block_mask, by_flex, tree_attention
from services.protocol.run.algorithm import AlgorithmConfig
from tests.batches import GroupBatch
from tests.trainer.conftest import VOCABULARY, _make_trajectory
from tests.trainer.shared_rows import VOCABULARY as SMALL
from tests.trainer.shared_rows import make_policy
from tests.trainer.test_learner import assert_same_weights, run_steps

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
    return [(prompt, start + end) for start, end in zip((stem, fork, fork, stem), ends)]


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
