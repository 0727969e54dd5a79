"""Finds the code in a model's answer: a pure function, the same result each time."""

import re

_FENCE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)


def extract_code(completion: str, template: str | None = None) -> str | None:
    """The source to run, or None when the answer has none.

    With a template the answer goes where `{completion}` stands, as it is. Without one it is
    the last fenced block (an unclosed one reaches to the end; the language tag is ignored),
    or, without fences, the whole answer.
    """
    if not completion.strip():
        return None
    if template is not None:
        return template.replace("{completion}", completion)
    blocks = [match[2] for match in _FENCE.finditer(completion)]
    code = blocks[-1] if blocks else completion
    return code if code.strip() else None
