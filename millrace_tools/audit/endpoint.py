"""An OpenAI-compatible server that an audit asks, as its options name it."""

import argparse
import os
from dataclasses import dataclass

from millrace_tools.client.services_url import split_url
from services.protocol.errors import InvalidInput


@dataclass(frozen=True)
class Endpoint:
    """A server and a model of it.

    Attributes:
        url: base URL, without `/v1`.
        model: as that server calls it.
        api_key: that it asks for.
    """

    url: str
    model: str
    api_key: str


def check_server(arguments: argparse.Namespace, prefix: str = "") -> None:
    """Look at `--url` and `--key-env` before anything is played; `prefix` begins their names.

    Raises:
        InvalidInput: it is no URL, or the variable is not set.
    """
    url, key_env = _given(arguments, prefix, "url"), _given(arguments, prefix, "key_env")
    if url is not None:
        split_url(url, f"--{prefix}url")
    if key_env is not None and key_env not in os.environ:
        fix = "There is no such environment variable."
        raise InvalidInput(f"--{prefix}key-env", key_env, fix)


def judge_of(arguments: argparse.Namespace, model: str) -> Endpoint | None:
    """The judge that the options name, None if they name none.

    Args:
        arguments: `--judge-url`, `--judge-model` and `--judge-key-env`; each may be left out,
            and is then that of the audited model.
        model: the audited model.
    """
    asked = ("judge_url", "judge_model", "judge_key_env")
    if all(getattr(arguments, name) is None for name in asked):
        return None
    key_env = arguments.judge_key_env
    if arguments.judge_url is None:
        key_env = key_env or arguments.key_env
    return Endpoint(
        url=(arguments.judge_url or arguments.url).rstrip("/"),
        model=arguments.judge_model or model,
        api_key=os.environ[key_env] if key_env else "none",
    )


def _given(arguments: argparse.Namespace, prefix: str, name: str) -> str | None:
    found: str | None = getattr(arguments, f"{prefix}{name}".replace("-", "_"))
    return found
