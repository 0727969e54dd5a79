"""Stands in for `tests/utils.py` among vLLM's tests: `serve.py` starts their servers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import anthropic
import openai

ROCM_EXTRA_ARGS: list[str] = []
VLLM_PATH = Path(__file__).parents[1]
_END_S = 120


class RemoteOpenAIServer:
    """A server of one side, for as long as the context lasts."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        **_: Any,
    ) -> None:
        root = os.environ["VLLM_SUITE_ROOT"]
        command = [sys.executable, "-m", "tests.vllm_suite.serve", os.environ["VLLM_SUITE_SIDE"]]
        self.proc = subprocess.Popen(
            [*command, model, *vllm_serve_args],
            cwd=root,
            env={**os.environ, **(env_dict or {}), "PYTHONPATH": root},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.proc.stdout is not None
        self.url_root = self.proc.stdout.readline().strip()
        assert self.url_root, "the server did not start"

    def __enter__(self) -> Self:
        """Already started."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End it."""
        self.proc.communicate(timeout=_END_S)

    def url_for(self, *parts: str) -> str:
        """Of an endpoint."""
        return self.url_root + "/" + "/".join(parts)

    def get_client(self, **kwargs: Any) -> openai.OpenAI:
        """As vLLM's tests make theirs."""
        return openai.OpenAI(**self._client(kwargs))

    def get_async_client(self, **kwargs: Any) -> openai.AsyncOpenAI:
        """As vLLM's tests make theirs."""
        return openai.AsyncOpenAI(**self._client(kwargs))

    def get_client_anthropic(self, **kwargs: Any) -> anthropic.Anthropic:
        """As vLLM's tests make theirs."""
        return anthropic.Anthropic(**self._client(kwargs, path=""))

    def get_async_client_anthropic(self, **kwargs: Any) -> anthropic.AsyncAnthropic:
        """As vLLM's tests make theirs."""
        return anthropic.AsyncAnthropic(**self._client(kwargs, path=""))

    def _client(self, given: dict[str, Any], path: str = "/v1") -> dict[str, Any]:
        known = {"base_url": f"{self.url_root}{path}", "api_key": self.DUMMY_API_KEY}
        return {"timeout": 600, "max_retries": 0} | known | given
