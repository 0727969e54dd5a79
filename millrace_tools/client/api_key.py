"""The API key that the command line shows."""

import os

from services.http.api_key import key_header

API_KEY = "MILLRACE_API_KEY"
"""Environment variable with it: a command's arguments are for all to see."""


def key_headers() -> dict[str, str]:
    """Headers that show the key, none without one."""
    return key_header(os.environ.get(API_KEY))
