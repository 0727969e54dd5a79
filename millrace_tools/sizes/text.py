"""Text of deployment files: lines of a file in place of others, and figures in its comments."""

import re
import textwrap
from collections.abc import Mapping

from millrace_tools.capacity.sizing import Sizing
from services.protocol.errors import InvalidInput

RUN_LINE = re.compile(r"^# For (.*?) and (\S+?\.yaml).*$", re.MULTILINE)
"""The line of a deployment file that names the model and the run file of its figures."""
_WIDTH = 96


def replaced(text: str, lines: Mapping[str, str], *, source: str) -> str:
    """The text with other lines.

    Args:
        text: of a file.
        lines: a line each or several, and those in their place.
        source: the file, for messages.

    Raises:
        InvalidInput: a line is not there, or is there twice: the file has been changed.
    """
    for old, new in lines.items():
        if text.count(old) != 1:
            fix = f"Its text is not the one that this command knows: it lacks {old.strip()!r}."
            raise InvalidInput("file", source, fix)
        text = text.replace(old, new)
    return text


def with_figures(text: str, sizing: Sizing) -> str:
    """The text of a deployment file with the figures of its values below `RUN_LINE`."""
    found = RUN_LINE.search(text)
    assert found is not None, "no line names model and run"
    comment = "".join(
        textwrap.fill(
            f"{name}: {value}",
            _WIDTH,
            initial_indent="#   ",
            subsequent_indent="#     ",
            break_on_hyphens=False,
        )
        + "\n"
        for name, value in sizing.figures()
    )
    head, tail = text[: found.end() + 1], text[found.end() + 1 :]
    return head + comment + re.sub(r"\A(?:#   .*\n)*", "", tail)


def with_model(text: str, model: str) -> str:
    """The text of a deployment file for another model."""
    return re.sub(r"&model hf://\S+.*", lambda _: f"&model {model}", text)
