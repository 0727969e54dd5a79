"""What `millrace chat` reads in vLLM's messages; here, where vLLM is imported anyway."""

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.params import TokenizeParams

from millrace_tools.chat import TOO_LONG


def test_vllm_still_says_that_a_prompt_is_too_long_in_these_words() -> None:
    with pytest.raises(VLLMValidationError, match=TOO_LONG):
        TokenizeParams(max_total_tokens=8)._token_len_check(None, list(range(9)))
