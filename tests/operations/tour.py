"""docs/tour.md as one walk."""

from pathlib import Path

from tests.guides.blocks import SHELL, blocks
from tests.operations.shell_walk import Typed, walk, write_files

PAGE = "docs/tour.md"
STAGES = {
    "source .venv/bin/activate": "model and services up, by hand",
    "millrace run": "the run's first train step",
    "sed -i": "another grader deployed",
    "millrace chaos": "a replica killed, and the report about it",
    "millrace stop": "run and services ended",
}
"""What each block does, by its beginning; the first one, `make demo`, is a stage of its own."""


def tour(clone: Path, *, most_s: float) -> list[Typed]:
    """All blocks after `make demo`, in a clone where that has been done.

    Raises:
        AssertionError: as `walk`; or a block is not among `STAGES`.
    """
    write_files(PAGE, clone)
    steps = []
    for block in [one for one in blocks(PAGE) if one.language in SHELL][1:]:
        (stage,) = [said for begins, said in STAGES.items() if block.text.startswith(begins)]
        steps.append((stage, _typed(block.text)))
    assert [stage for stage, _ in steps] == list(STAGES.values())
    return walk(clone, steps, most_s=most_s)


def _typed(text: str) -> str:
    if text.startswith("millrace run"):  # in a terminal of its own
        return f"{text.strip()} > tour/run.log &\n{_STEPS}\n{_next_step(0)}"
    if text.startswith("sed -i"):
        return f"{text}{_DEPLOYED}\n{_next_step('$(steps)')}"
    return text


_STEPS = "steps() { cat tour/runs/*/metrics.jsonl 2>/dev/null | wc -l; }"
_DEPLOYED = """
until serve status | grep -A 3 '^  reward_service:' | grep 'status: RUNNING'; do sleep 0.5; done
"""


def _next_step(now: int | str) -> str:
    return f"""now={now}
until [ $(steps) -gt $now ]; do sleep 0.1; done
tail -n 1 tour/runs/*/metrics.jsonl"""
