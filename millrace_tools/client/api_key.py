"""The API key that the command line shows."""

import os

API_KEY = "MILLRACE_API_KEY"
"""Environment variable with it: a command's arguments are for all to see."""


def key_headers() -> dict[str, str]:
    """Headers that show the key, none without one."""
    key = os.environ.get(API_KEY)
    return {"authorization": f"Bearer {key}"} if key else {}
