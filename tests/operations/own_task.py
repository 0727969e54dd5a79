"""From a clone to a curve on a task of one's own: the first section of docs/your-own-tasks.md."""

import re
from dataclasses import dataclass, replace

from tests.guides.blocks import ROOT, SHELL, Block, blocks

PAGE = "docs/your-own-tasks.md"
MOST_S, MOST_USER_S = 300.0, 120.0
MOST_COMMANDS, MOST_FILES = 4, 1
WORDS_READ_A_MINUTE = CHARACTERS_TYPED_A_MINUTE = 200
FILE = "mine/grader.py"
_WRITTEN = ROOT / "millrace_tools" / "demo" / "task_template" / "grader.py"
_SECTION = ("## From a clone to your own curve\n", "### With a clock\n")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that the user does.

    Attributes:
        text: for a shell.
        commands: that the user types.
        files: that the user edits.
        user_s: the user's time, by the rules of the page.
    """

    name: str
    text: str
    commands: int = 0
    files: int = 0
    user_s: float


def own_task_steps() -> list[Step]:
    """What the section says to do, in its order; to read it comes first."""
    section = _section()
    read = Step(name="read the section", text="true", user_s=_reading_s(section))
    shown = [one for one in blocks(PAGE) if f"```{one.language}\n{one.text}```" in section]
    return [read, *(step for block in shown for step in _steps(block))]


def _section() -> str:
    begins, ends = _SECTION
    _, _, rest = (ROOT / PAGE).read_text(encoding="utf-8").partition(begins)
    section, end, _ = rest.partition(ends)
    assert end, f"{PAGE} has no {begins.strip()!r} before {ends.strip()!r}"
    return section


def _steps(block: Block) -> list[Step]:
    if block.language not in SHELL:
        return [_edit(block.text)]
    lines = [re.sub(r" +#.*", "", line) for line in block.text.splitlines()]
    return [
        Step(
            name=f"`{line}`",
            text=line,
            commands=len(replace(block, text=f"{line}\n").commands),
            user_s=_typing_s(line),
        )
        for line in lines
    ]


def _edit(function: str) -> Step:
    """The function in place of the one in the file: the user types the lines that are new."""
    before = _WRITTEN.read_text(encoding="utf-8").replace("task_name", "mine")
    kept, decorator, _ = before.partition("@grader")
    assert decorator, f"{_WRITTEN} has no @grader"
    new = [line.strip() for line in function.splitlines() if line not in before.splitlines()]
    return Step(
        name=f"edit `{FILE}`",
        text=f"cat > {FILE} <<'END_OF_FILE'\n{kept}{function}END_OF_FILE",
        files=1,
        user_s=_reading_s(before) + _typing_s("\n".join([f"editor {FILE}", *new])),
    )


def _reading_s(text: str) -> float:
    return len(text.split()) * 60 / WORDS_READ_A_MINUTE


def _typing_s(text: str) -> float:
    """For the text and the return key."""
    return (len(text) + 1) * 60 / CHARACTERS_TYPED_A_MINUTE
