"""Finds the code in a model's answer: pure functions, the same result each time.

The rules, in this order:

1. Thinking is left out: everything up to the first `</think>`. An answer that begins with
   `<think>` and never closes it has not begun.
2. With a template the whole of what is left takes the place of `{completion}`.
3. Fenced blocks are found line by line: a line of at most three spaces, then three or more
   backticks or tildes, and a tag, opens one; a line with at least as many of the same closes
   it. An unclosed fence reaches to the end. What stands inside a block opens nothing.
4. Of several blocks the last counts among those tagged with the language; if there are none,
   among those without a tag; if there are none, among all.
5. Without any fence all that is left is the code.

Nothing but white space is no code.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_OPENING = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        tag: first word after the fence, in small letters.
        text: the lines inside.
        closed: false if the answer ended first.
    """

    tag: str
    text: str
    closed: bool


def extract_code(
    completion: str, template: str | None = None, *, tags: Collection[str] = ("python", "py")
) -> str | None:
    """The source to run, or None when the answer has none; `tags` are those of its language."""
    answer = without_thinking(completion)
    if not answer.strip():
        return None
    if template is not None:
        return template.replace("{completion}", answer)
    found = blocks(answer)
    tagged = [block for block in found if block.tag in tags]
    plain = [block for block in found if not block.tag]
    choice = tagged or plain or found
    code = choice[-1].text if choice else answer
    return code if code.strip() else None


def without_thinking(completion: str) -> str:
    """The answer proper: what follows the first `</think>`."""
    before, closed, after = completion.partition(_CLOSE)
    if closed:
        return after
    return "" if before.lstrip().startswith(_OPEN) else completion


def blocks(answer: str) -> list[Block]:
    """All fenced blocks, in order; takes linear time."""
    found: list[Block] = []
    fence, tag, inside = "", "", list[str]()
    for line in _LINES.findall(answer):
        match = _OPENING.match(line)
        if not fence:
            if match and not (match[1][0] == "`" and "`" in match[2]):
                fence, tag, inside = match[1], _first_word(match[2]), []
        elif match and not match[2].strip() and match[1].startswith(fence):
            found.append(Block(tag=tag, text="".join(inside), closed=True))
            fence = ""
        else:
            inside.append(line)
    if fence:
        found.append(Block(tag=tag, text="".join(inside), closed=False))
    return found


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0].lower() if words else ""
