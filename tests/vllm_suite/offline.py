"""The `conftest.py` of vLLM's tests here: every model that they name is the one that is served."""

import os
from typing import Any

import transformers
import vllm.tokenizers
import vllm.transformers_utils.repo_utils as hub

_MODEL = os.environ["VLLM_SUITE_MODEL"]
_from_pretrained = transformers.AutoTokenizer.from_pretrained
_get_tokenizer = vllm.tokenizers.get_tokenizer


class _Hub:
    def snapshot_download(self, *_: Any, **__: Any) -> str:
        """A folder, which no server reads."""
        return _MODEL


def _tokenizer(*_: Any, **__: Any) -> Any:
    return _from_pretrained(_MODEL)


def _vllms_tokenizer(*_: Any, **__: Any) -> Any:
    return _get_tokenizer(_MODEL)


transformers.AutoTokenizer.from_pretrained = _tokenizer
vllm.tokenizers.get_tokenizer = _vllms_tokenizer
hub.hf_api = _Hub
