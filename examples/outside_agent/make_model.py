"""Make the example's model and task file.

The customers are those of `examples/shop`. The model is shown clerks who call the tools in the form
that Hermes models have; seven in ten of them add where they should multiply.

    python -m examples.outside_agent.make_model --seed 0
"""

import json
from pathlib import Path
from random import Random

from examples.shop.imitation import Conversation, Lessons, command
from examples.shop.tasks import TRAIN, Purchase, purchases, rows

TASK_FILE = Path(__file__).with_name("tasks.jsonl")
SHARE_RIGHT = 0.3
_KNOWN = purchases()[:TRAIN]


def shown(one: Purchase, *, right: bool) -> Conversation:
    """A clerk's calls of the tools, and the sum that the clerk asks for."""
    price = one.prices[one.item]
    tool, paid = ("times", one.count * price) if right else ("plus", one.count + price)
    turns = [
        (_call("price", item=one.item), str(price)),
        (_call(tool, a=one.count, b=price), str(paid)),
        (str(paid), ""),
    ]
    return Conversation(prompt=one.prompt, turns=turns, told_by="tool")


def _call(name: str, **arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def draw(chance: Random, _: float) -> Conversation:
    """A clerk, who may be one that adds."""
    return shown(chance.choice(_KNOWN), right=chance.random() < SHARE_RIGHT)


def texts() -> list[str]:
    """What clerks of both kinds say."""
    return [shown(one, right=right).text for one in _KNOWN for right in (True, False)]


LESSONS = Lessons(
    name="outside_agent",
    task_file=TASK_FILE,
    rows=rows,
    texts=texts,
    draw=draw,
    steps=800,
    single_digits=True,
)

if __name__ == "__main__":
    command(LESSONS)
