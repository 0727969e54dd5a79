"""A tiny model that was shown conversations, and the command that makes it."""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from examples.tiny_code.tokenizer import answer_ids, train_tokenizer
from examples.tiny_code.warm_start import imitation_loss, new_model

MODELS = Path(__file__).parents[2] / "models"
BATCH, LEARNING_RATE, RISING_STEPS = 32, 4e-3, 20


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What the model is shown.

    Attributes:
        prompt: the user's first words.
        turns: what the model says, each with what it is told then.
        told_by: the role of those who tell it.
    """

    prompt: str
    turns: list[tuple[str, str]]
    told_by: str = "user"

    @property
    def text(self) -> str:
        """All that the tokenizer must know."""
        return "\n".join(["user", self.prompt, "assistant", *(said for said, _ in self.turns)])

    def before(self, place: int) -> list[dict[str, str]]:
        """The messages before the model's line of this number."""
        messages = [{"role": "user", "content": self.prompt}]
        for said, told in self.turns[:place]:
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": self.told_by, "content": told})
        return messages


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """An example's tasks and what its model is shown before it learns from rewards.

    Attributes:
        name: of the example; its models are `models/NAME-seedN`.
        task_file: where its tasks are written.
        rows: the tasks.
        texts: what the tokenizer is trained on.
        draw: a demonstration, by chance and by the share of the steps that are done.
        steps: how many batches of them the model is shown.
        single_digits: each digit is a token of its own.
    """

    name: str
    task_file: Path
    rows: Callable[[], list[dict[str, Any]]]
    texts: Callable[[], Iterable[str]]
    draw: Callable[[Random, float], Conversation]
    steps: int
    single_digits: bool = False


def make_model(lessons: Lessons, out: Path, seed: int) -> None:
    """Write a Hugging Face checkpoint to `out`."""
    torch.set_num_threads(1)  # more cost time at this size
    chance = Random(seed)
    tokenizer = train_tokenizer(lessons.texts(), single_digits=lessons.single_digits)
    model = new_model(tokenizer, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(lessons.steps):
        rate = min(1.0, step / RISING_STEPS, 2 - 2 * step / lessons.steps)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        prompts, answers = [], []
        for _ in range(BATCH):
            shown = lessons.draw(chance, step / lessons.steps)
            place = chance.randrange(len(shown.turns))
            text = tokenizer.apply_chat_template(
                shown.before(place), tokenize=False, add_generation_prompt=True
            )
            prompts.append(tokenizer.encode(text, add_special_tokens=False))
            answers.append(answer_ids(tokenizer, shown.turns[place][0]))
        loss = imitation_loss(model, prompts, answers)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def command(lessons: Lessons) -> None:
    """Command line: writes the task file, and the model unless it is there."""
    parser = argparse.ArgumentParser(description=f"Make the model and tasks of {lessons.name}.")
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument("--out", type=Path, help=f"folder (default: models/{lessons.name}-seedN)")
    arguments = parser.parse_args()
    out = arguments.out or MODELS / f"{lessons.name}-seed{arguments.seed}"
    lines = (json.dumps(row) + "\n" for row in lessons.rows())
    lessons.task_file.write_text("".join(lines), encoding="utf-8")
    if not (out / "config.json").exists():
        make_model(lessons, out, arguments.seed)
    print(f"wrote {lessons.task_file} and {out}")
