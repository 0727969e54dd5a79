"""A train step of TRL's GRPOTrainer on a given batch. Runs in TRL's own environment.

The trainer's own loop runs, from its dataloader to its optimizer, but for sampling and
scoring: there it waits for its turn and then gets the batch.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.models import on_cpu
from benchmarks.train_step.batch import GROUP_SIZE, Answer, Watch, read, tell

ROWS = 16
"""Answers of one forward pass."""


class Given(GRPOTrainer):
    """TRL's trainer, given answers and their advantages when its turn comes."""

    answers: Sequence[Answer] = ()
    watch = Watch()

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if self.state.global_step == 0:
            tell("ready")
        sys.stdin.readline()
        self.watch = Watch()
        return lay_out(self.answers)


def lay_out(answers: Sequence[Answer]) -> dict[str, Any]:
    """As TRL lays a batch out: prompts padded on the left, answers on the right."""
    rewards = torch.tensor([one.reward for one in answers]).view(-1, GROUP_SIZE)
    centred = rewards - rewards.mean(1, keepdim=True)
    before = max(len(one.prompt) for one in answers)
    after = max(len(one.response) for one in answers)
    prompts, completions = torch.zeros(2, len(answers), 1, dtype=torch.int64)
    prompts, completions = prompts.repeat(1, before), completions.repeat(1, after)
    prompt_mask, completion_mask = torch.zeros_like(prompts), torch.zeros_like(completions)
    for index, one in enumerate(answers):
        prompts[index, before - len(one.prompt) :] = torch.tensor(one.prompt)
        prompt_mask[index, before - len(one.prompt) :] = 1
        completions[index, : len(one.response)] = torch.tensor(one.response)
        completion_mask[index, : len(one.response)] = 1
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": completions,
        "completion_mask": completion_mask,
        "advantages": (centred / (rewards.std(1, keepdim=True) + 1e-4)).view(-1),
        "num_items_in_batch": completion_mask.sum(),
    }


class Clock(TrainerCallback):
    """Says after every optimizer step how long it took since its batch was there."""

    trainer: Any = None

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """See `TrainerCallback`."""
        tell(self.trainer.watch.read())


def main() -> None:
    """Take a train step for every line on stdin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    answers = read(options.folder)
    config = GRPOConfig(
        **on_cpu(options.folder / "trl"),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=len(answers) // ROWS,
        num_generations=GROUP_SIZE,
        max_steps=options.rounds,
        learning_rate=1e-6,
        beta=0.0,
        loss_type="dapo",
    )
    clock = Clock()
    trainer = Given(
        model=AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(options.folder),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        train_dataset=Dataset.from_list([{"prompt": "t2"}] * len(answers)),
        args=config,
        callbacks=[clock],
    )
    trainer.answers, clock.trainer = answers, trainer
    trainer.train()


if __name__ == "__main__":
    main()
