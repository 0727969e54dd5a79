"""The prompt of a conversation that goes on from the tokens that an engine had.

Chat templates rewrite history: those of thinking models leave earlier thoughts out. Here the
recorded tokens of a conversation stay as they are, and the template renders only the messages
after them. No family's template is known here: a random mark stands in for the answer that ends
the recorded tokens, the whole conversation is rendered as ever, and what follows the mark is what
the template writes after such an answer. So text is tokenised once, as a part of the whole prompt.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError
from vllm.renderers.chat_utils import has_non_text_content
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers import TokenizerLike

from services.protocol.rollout_server import RecordedStart
from services.protocol.session import CutReason

_MARK_BYTES = 8
_ASKED = {"role": "user", "content": "."}


async def continued_prompt(
    renderer: OnlineRenderer, body: Mapping[str, Any], start: RecordedStart
) -> list[int] | CutReason:
    """The recorded tokens and, from the template, those of the messages after them.

    Args:
        renderer: the model's.
        body: the chat, with all of its messages.
        start: what is recorded; its last message is an answer.

    Returns:
        Token ids of the whole prompt, or why there is none.
    """
    messages, length = body["messages"], start.messages
    if has_non_text_content(messages):
        return "media"
    if body.get("truncate_prompt_tokens") is not None:
        return "settings"
    mark, added = secrets.token_hex(_MARK_BYTES), None
    for answer in _marked(messages[length - 1], mark):
        replaced = [*messages[: length - 1], answer, *messages[length:]]
        whole = await _rendered(renderer, {**body, "messages": replaced})
        # As the last message: nothing but the answer's own end follows the mark.
        last = {"add_generation_prompt": False, "continue_final_message": False}
        alone = await _rendered(renderer, {**body, **last, "messages": [_ASKED, answer]})
        if whole is None or alone is None:
            continue
        tokenizer = renderer.renderer.get_tokenizer()
        # A tenth of a second for the longest prompts, which other requests must not wait for.
        added = await asyncio.to_thread(
            _after_answer, tokenizer, whole, alone, mark=mark, end=start.token_ids[-1]
        )
        if added is not None:
            break
    if added is None or isinstance(added, str):
        return added or "not_separable"
    prompt = [*start.token_ids, *added]
    return prompt if len(prompt) < renderer.model_config.max_model_len else "too_long"


def _marked(answer: Mapping[str, Any], mark: str) -> list[dict[str, Any]]:
    """The answer with the mark as the last that it says, in the ways that are to be tried."""
    calls = answer.get("tool_calls")
    text = {"role": "assistant", "content": mark}
    if not calls:
        return [text]
    *others, call = calls
    function = {**call["function"], "arguments": f'{{"mark": "{mark}"}}'}
    called = [*others, {**call, "function": function}]
    # Some templates write no calls.
    return [{**text, "content": "", "tool_calls": called}, {**text, "tool_calls": calls}]


async def _rendered(renderer: OnlineRenderer, body: Mapping[str, Any]) -> list[int] | None:
    """Token ids of a chat; None: it cannot be rendered."""
    try:
        # Rendering changes a request: each needs one of its own.
        chat = ChatCompletionRequest.model_validate(body)
        rendered = await renderer.render_chat(chat, skip_mm_cache=True)
    except (ValueError, VLLMClientError):
        return None
    if isinstance(rendered, ErrorResponse):
        return None
    token_ids: list[int] | None = rendered[1][0].get("prompt_token_ids")
    return token_ids


def _after_answer(
    tokenizer: TokenizerLike, whole: list[int], alone: list[int], *, mark: str, end: int
) -> list[int] | CutReason | None:
    """The tokens after the token that ends the marked answer; None: the mark is not there.

    Args:
        tokenizer: of the prompts.
        whole: a prompt with messages after the answer.
        alone: a prompt that ends with the answer.
        mark: stands once in each.
        end: the token that ended the answer when it was sampled.
    """
    if end not in tokenizer.get_added_vocab().values():
        return "end_of_turn"  # any other token may be written as a part of a longer one
    tokens, last = tokenizer.convert_ids_to_tokens(whole), tokenizer.convert_ids_to_tokens(alone)
    begin, its_begin = _behind(mark, tokens), _behind(mark, last)
    if begin is None or its_begin is None:
        return None
    rest, following = begin
    if end not in whole[following:]:
        return "end_of_turn"
    at = whole.index(end, following)
    # What closes a tool call stands there without later messages, too: `end` is not one of theirs.
    closing = rest + "".join(tokens[following:at])
    if not (its_begin[0] + "".join(last[its_begin[1] :])).startswith(closing):
        return "end_of_turn"
    return whole[at + 1 :]


def _behind(mark: str, tokens: Sequence[str]) -> tuple[str, int] | None:
    """The rest of the token in which the mark ends, and the number of the next token."""
    text = "".join(tokens)
    found = text.find(mark)
    if found < 0:
        return None
    end, length = found + len(mark), 0
    for number, token in enumerate(tokens, start=1):
        length += len(token)
        if length >= end:
            return text[end:length], number
    return None
