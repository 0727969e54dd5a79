"""Sample, grade, train, evaluate: one after the other, with weights as old as is asked for."""

import json
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.learning.matrix import Configuration
from benchmarks.learning.results import Outcome
from benchmarks.one_process.grading import passes
from benchmarks.one_process.matrix import is_taught
from benchmarks.one_process.sampler import Answer, Sampler
from benchmarks.snapshot_tensors import snapshot_tensors
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.train_batch import BatchBuilder, ScoredTrajectory, TrainGroup
from services.protocol.trainer import RunStart
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.config import TrainerConfig
from services.trainer.rank.learner import Learner

Weights = dict[str, Tensor]
Row = dict[str, Any]


class Loop:
    """Runs from the same initial weights, one after another.

    Args:
        models: that run files may name as `model`; a process group of one rank was made before.
        task_file: of the demo.
        folder: for what the trainer would write.
        seed: of prompts and samples.

    Attributes:
        weights: those that the last run ended with.
    """

    def __init__(
        self, models: Mapping[str, Path], task_file: Path, folder: Path, seed: int
    ) -> None:
        model = next(iter(models.values()))
        tokenizer = AutoTokenizer.from_pretrained(model)
        self._learners = {
            name: Learner(TrainerConfig(model=str(path), world_size=1))
            for name, path in models.items()
        }
        self._sampler, self._teacher = Sampler(model, tokenizer), Sampler(model, tokenizer)
        self._folder, self._seed = folder, seed
        rows = [json.loads(line) for line in task_file.read_text(encoding="utf-8").splitlines()]
        self._train = [row for row in rows if row["split"] == "train"]
        self._heldout = [row for row in rows if row["split"] == "heldout"]
        self._ids = {
            row["task_id"]: tokenizer.apply_chat_template(
                row["messages"], add_generation_prompt=True, return_dict=False
            )
            for row in rows
        }
        self.weights: Weights = {}

    def learn(self, one: Configuration, steps: int, teacher: Weights | None) -> Outcome:
        """One run.

        Args:
            one: which.
            steps: how many train steps.
            teacher: its weights, if the run is taught.
        """
        began, config = time.monotonic(), one.run_config(seed=self._seed, steps=steps)
        torch.manual_seed(self._seed)
        if is_taught(one):
            assert teacher is not None, "made before"
            self._teacher.load(teacher)
        start = RunStart(
            run_id=one.name,
            checkpoint_dir=str(self._folder / one.name),
            algorithm=config.algorithm,
            temperature=1.0,
            seed=self._seed,
            updates=steps * config.algorithm.minibatches,
        )
        self._learner = self._learners[config.model]
        self._learner.start_run(start, 0)
        lag = config.schedule.max_staleness
        kept = deque([snapshot_tensors(self._learner, 0)], maxlen=lag + 1)
        heldout, rewards, ages = [(0, self._pass_rate(config, kept[-1]))], [], []
        prompts = self._prompts(config)
        for step in range(1, steps + 1):
            sampled_by = max(0, step - 1 - lag)  # kept[0] is that version
            groups, reward = self._sampled(config, kept[0], sampled_by, prompts)
            rewards.append(round(reward, 4))
            ages.append(step - 1 - sampled_by)
            self._trained(start, groups, step)
            kept.append(snapshot_tensors(self._learner, step))
            if step % config.evaluation.every == 0 or step == steps:
                heldout.append((step, self._pass_rate(config, kept[-1])))
        self.weights = kept[-1]
        return Outcome(
            name=one.name,
            seed=self._seed,
            steps=steps,
            overrides=dict(one.overrides),
            state=RunState.FINISHED,
            detail="",
            heldout=heldout,
            reward=rewards,
            staleness_mean=[float(age) for age in ages],
            staleness_max=ages,
            wall_s=round(time.monotonic() - began, 1),
            failures={},
        )

    def _prompts(self, config: RunConfig) -> Iterator[list[Row]]:
        """The tasks of each batch; every epoch in an order of its own."""
        chance = random.Random(self._seed)
        while True:
            order = chance.sample(self._train, len(self._train))
            for place in range(0, len(order) - config.batch_groups + 1, config.batch_groups):
                yield order[place : place + config.batch_groups]

    def _sampled(
        self, config: RunConfig, weights: Weights, version: int, prompts: Iterator[list[Row]]
    ) -> tuple[list[TrainGroup], float]:
        """Groups that the trainer gets, and the mean reward of all that were sampled."""
        self._sampler.load(weights)
        schedule, groups, rewards = config.schedule, [], []
        for _ in range(schedule.max_refills if schedule.dynamic_sampling else 1):
            for group in self._groups(config, next(prompts), version):
                found = [one.reward for one in group.trajectories]
                rewards += found
                if config.algorithm.learns_from_equal_rewards or len(set(found)) > 1:
                    groups.append(group)
            if len(groups) >= config.batch_groups:
                break
        return groups[: config.batch_groups], fmean(rewards)

    def _groups(self, config: RunConfig, rows: list[Row], version: int) -> Iterator[TrainGroup]:
        every = [row for row in rows for _ in range(config.group_size)]
        prompts = [self._ids[row["task_id"]] for row in every]
        answers = self._sampler.answers(prompts, max_tokens=config.sampling.max_tokens)
        taught = config.algorithm.distillation is not None
        scores = self._teacher.scores(prompts, answers) if taught else [None] * len(answers)
        members = [
            ScoredTrajectory(
                trajectory=_trajectory(prompt, answer, version),
                reward=float(passes(answer.text, row["grader"]["tests"])),
                teacher=score,
            )
            for row, prompt, answer, score in zip(every, prompts, answers, scores, strict=True)
        ]
        for place in range(0, len(members), config.group_size):
            group = tuple(members[place : place + config.group_size])
            yield TrainGroup(group_id=place, trajectories=group)

    def _trained(self, start: RunStart, groups: list[TrainGroup], step: int) -> None:
        """A train step, or only its number where no group has a gradient."""
        if not groups:
            self._learner.snapshot(step)
            return
        builder = BatchBuilder(run_id=start.run_id, step=step)
        for group in groups:
            builder.add(group)
        part = self._learner.model.plan(builder.batch(), start).part(0)
        self._learner.train(part, step - 1, step)

    def _pass_rate(self, config: RunConfig, weights: Weights) -> float:
        """Of the held-out tasks, greedily."""
        self._sampler.load(weights)
        rows = self._heldout[: config.evaluation.tasks]
        answers = self._sampler.answers(
            [self._ids[row["task_id"]] for row in rows],
            max_tokens=config.sampling.max_tokens,
            greedy=True,
        )
        right = [
            passes(one.text, row["grader"]["tests"]) for row, one in zip(rows, answers, strict=True)
        ]
        return round(fmean(right), 4)


def _trajectory(prompt: list[int], answer: Answer, version: int) -> Trajectory:
    length = len(answer.ids)
    return Trajectory(
        prompt_token_ids=tuple(prompt),
        response_token_ids=answer.ids,
        behaviour_logprobs=answer.logprobs,
        loss_mask=(1,) * length,
        spans=(PolicySpan(version=version, start=0, end=length, replica_id="here"),),
        finish_reason="stop",
        text=answer.text,
    )
