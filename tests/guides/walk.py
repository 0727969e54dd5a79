"""Which blocks one walk on a cluster of its own plays, and in which order."""

from tests.guides.blocks import Block, blocks

ORDER = (
    ("README.md", "source .venv/bin/activate"),
    ("README.md", "import openai"),
    ("docs/sessions.md", "import httpx, openai"),
    ("docs/your-own-tasks.md", "millrace run my_tasks/run.yaml\n"),
    ("docs/your-own-tasks.md", "head -1 my_tasks/runs/*/trajectories.jsonl"),
    ("docs/your-own-tasks.md", "millrace run my_tasks/run.yaml --resume"),
    ("docs/your-own-tasks.md", "millrace export my_tasks/runs/RUN_ID"),
    ("docs/checkpoints.md", "millrace export RUN_DIR models/mine"),
)
"""Page and beginning of each block. The first block's last line ends the cluster: it comes last."""


def walked() -> list[Block]:
    """The blocks of the walk, in its order.

    Raises:
        AssertionError: a page has no such block, or several.
    """
    found = []
    for page, beginning in ORDER:
        fitting = [one for one in blocks(page) if one.text.startswith(beginning)]
        assert len(fitting) == 1, f"{page} has {len(fitting)} blocks that begin with {beginning!r}"
        found += fitting
    return found
