"""What clients ask, and what an untrained model is made to answer."""

import json
from typing import Any

from tests.router.request_table import TOOLS, forced

ASK = [{"role": "user", "content": "larger of a and 7"}]
STRICT_TOOLS = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
"""As the client's own helpers want them, which read arguments by their schema."""


def says(text: str) -> dict[str, Any]:
    """Fields of a request, beyond OpenAI's, whose answer can only be this text."""
    return forced(text)


def call(name: str, **arguments: Any) -> str:
    """A tool call as the tool parser reads it."""
    asked = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{asked}\n</tool_call>"
