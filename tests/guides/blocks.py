"""The code blocks of README and guides, and the commands in those that are for a shell."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
GUIDES = ("README.md", "CONTRIBUTING.md", "docs/*.md")
FIRST_CHANGES = "docs/first-changes.md"
"""Its blocks change the code, and are tried in a copy of it: see test_first_changes.py."""
EXAMPLES = ("examples/*/README.md",)
SHELL = ("bash", "sh")
_OPERATORS = ";|&()<>"
_ENDS = (";", "|", "||", "&", "&&")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        page: path of its file from the root.
        line: of its fence, counted from 1.
        language: what stands behind the fence; empty for output and drawings.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """Every simple command of a shell block as words, redirections left out."""
        return [words for line in _lines(self.text) for words in _simple(line)]


def blocks(*patterns: str) -> list[Block]:
    """All blocks of the pages that match."""
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return [
        Block(
            page=path.relative_to(ROOT).as_posix(),
            line=token.map[0] + 1,
            language=token.info.strip(),
            text=token.content,
        )
        for path in paths
        for token in MarkdownIt().parse(path.read_text(encoding="utf-8"))
        if token.type == "fence" and token.map
    ]


def _lines(text: str) -> Iterator[str]:
    """Logical lines: a quotation or a backslash goes on in the next."""
    line = ""
    for part in text.splitlines():
        line += part
        if line.endswith("\\"):
            line = line[:-1]
            continue
        try:
            shlex.split(line, comments=True)
        except ValueError:
            line += "\n"
            continue
        yield line
        line = ""
    assert not line.strip(), f"a quotation is open at the end: {line}"


def _simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in lexer:
        if word in _ENDS:
            yield from [words] if words else []
            words = []
        elif skip or set(word) <= set("<>&"):
            skip = not skip  # a redirection and its file
        elif words or "=" not in word.partition("/")[0] or word == "export":
            words.append(word)  # assignments before a command are no part of it
    if words:
        yield words
