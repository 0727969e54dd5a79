"""Writes docs/reference/ from the code: `python docs/make_reference.py`, after a key, a command,
a path or a metric has changed."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # a script is loaded by its path

from docs.site.reference import pages  # noqa: E402

NOTE = "<!-- Made by `python docs/make_reference.py` from the code. -->\n\n"


def texts() -> dict[Path, str]:
    """The text of each file."""
    return {DOCS / path: f"{NOTE}{text.rstrip()}\n" for path, text in pages().items()}


if __name__ == "__main__":
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
