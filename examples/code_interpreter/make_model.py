"""Make the example's model and task file.

The model is shown what a call of the tool looks like, mostly with careless programs.
Then half of the demonstrations answer without the tool, and wrongly. So imitation alone learns not
to use it, and to use it badly.

    python -m examples.code_interpreter.make_model --seed 0
"""

from pathlib import Path
from random import Random

from examples.code_interpreter.tasks import TRAIN, Sum, any_sum, rows, sums
from examples.shop.imitation import Conversation, Lessons, command

TASK_FILE = Path(__file__).with_name("tasks.jsonl")
SHARE_RIGHT = 0.35
"""Of the programs."""
CALLS_ONLY, SHARE_IN_THE_HEAD = 0.8, 0.5
"""Part of the steps in which only calls are shown, and share of the answers without one later."""
_HELDOUT = {one.prompt for one in sums()[TRAIN:]}


def draw(chance: Random, shown: float) -> Conversation:
    """Somebody's way to answer a question, which is none of the held-out ones.

    Args:
        chance: decides everything.
        shown: share of the steps that are done.
    """
    one = _any(chance)
    if shown >= CALLS_ONLY and chance.random() < SHARE_IN_THE_HEAD:
        turns = one.in_the_head(chance)
    else:
        turns = one.with_tool(right=chance.random() < SHARE_RIGHT)
    return Conversation(prompt=one.prompt, turns=turns)


def _any(chance: Random) -> Sum:
    while (one := any_sum(chance)).prompt in _HELDOUT:
        pass
    return one


def texts() -> list[str]:
    """Programs of both kinds."""
    return [
        Conversation(prompt=one.prompt, turns=one.with_tool(right=right)).text
        for one in sums()[:TRAIN]
        for right in (True, False)
    ]


LESSONS = Lessons(
    name="code_interpreter",
    task_file=TASK_FILE,
    rows=rows,
    texts=texts,
    draw=draw,
    steps=1200,
    single_digits=True,
)

if __name__ == "__main__":
    command(LESSONS)
