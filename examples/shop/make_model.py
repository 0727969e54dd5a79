"""Make the shop's model and task file.

The model is warm-started on clerks of whom seven in ten add where they should multiply, so
imitation alone learns to ask for the wrong sum; only the customers tell.

    python -m examples.shop.make_model --seed 0
"""

import argparse
import json
import random
from pathlib import Path

import torch

from examples.shop.tasks import TRAIN, Purchase, purchases, rows
from examples.tiny_code.tokenizer import answer_ids, train_tokenizer
from examples.tiny_code.warm_start import imitation_loss, new_model

FOLDER = Path(__file__).parent
TASK_FILE = FOLDER / "tasks.jsonl"
MODELS = FOLDER.parents[1] / "models"
STEPS, BATCH, LEARNING_RATE, SHARE_RIGHT = 250, 32, 4e-3, 0.3


def make_model(out: Path, seed: int, *, steps: int = STEPS) -> None:
    """Write a Hugging Face checkpoint to `out`."""
    torch.set_num_threads(1)  # more cost time at this size
    chance, known = random.Random(seed), purchases()[:TRAIN]
    tokenizer = train_tokenizer(_texts(known))
    model = new_model(tokenizer, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, step / 20, 2 - 2 * step / steps)
        prompts, answers = [], []
        for _ in range(BATCH):
            one = chance.choice(known)
            turns = one.turns(right=chance.random() < SHARE_RIGHT)
            place = chance.randrange(len(turns))
            text = tokenizer.apply_chat_template(
                _history(one, turns[:place]), tokenize=False, add_generation_prompt=True
            )
            prompts.append(tokenizer.encode(text, add_special_tokens=False))
            answers.append(answer_ids(tokenizer, turns[place][0]))
        loss = imitation_loss(model, prompts, answers)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _history(one: Purchase, turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": one.prompt}]
    for said, result in turns:
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": result}]
    return messages


def _texts(known: list[Purchase]) -> list[str]:
    return [
        "\n".join(["user", one.prompt, "assistant", *(said for said, _ in one.turns(right=right))])
        for one in known
        for right in (True, False)
    ]


def main() -> None:
    """Command line: writes the task file, and the model unless it is there."""
    parser = argparse.ArgumentParser(description="Make the shop's model and tasks.")
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument("--out", type=Path, help="folder (default: models/shop-seedN)")
    arguments = parser.parse_args()
    out = arguments.out or MODELS / f"shop-seed{arguments.seed}"
    TASK_FILE.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    if not (out / "config.json").exists():
        make_model(out, arguments.seed)
    print(f"wrote {TASK_FILE} and {out}")


if __name__ == "__main__":
    main()
