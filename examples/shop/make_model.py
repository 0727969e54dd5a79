"""Make the shop's model and task file.

The model is warm-started on clerks of whom seven in ten add where they should multiply, so
imitation alone learns to ask for the wrong sum; only the customers tell.

    python -m examples.shop.make_model --seed 0
"""

from pathlib import Path
from random import Random

from examples.shop.imitation import Conversation, Lessons, command
from examples.shop.tasks import TRAIN, purchases, rows

TASK_FILE = Path(__file__).with_name("tasks.jsonl")
SHARE_RIGHT = 0.3
_KNOWN = purchases()[:TRAIN]


def draw(chance: Random, _: float) -> Conversation:
    """A clerk, who may be one that adds."""
    one = chance.choice(_KNOWN)
    turns = one.turns(right=chance.random() < SHARE_RIGHT)
    return Conversation(prompt=one.prompt, turns=turns)


def texts() -> list[str]:
    """What clerks of both kinds say."""
    return [
        Conversation(prompt=one.prompt, turns=one.turns(right=right)).text
        for one in _KNOWN
        for right in (True, False)
    ]


LESSONS = Lessons(name="shop", task_file=TASK_FILE, rows=rows, texts=texts, draw=draw, steps=250)

if __name__ == "__main__":
    command(LESSONS)
