"""Parts of vLLM's own routes that have no public name."""

from typing import Any

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.utils.async_utils import make_async


async def messages_settings(
    serving: AnthropicServingMessages, *, thinking_disabled: bool
) -> dict[str, Any]:
    """Arguments of `AnthropicServingMessages.to_chat_completion_request`: of the chat template.

    Args:
        serving: of the application.
        thinking_disabled: the request switches thinking off.
    """
    settings: dict[str, Any] = {"merge_inline_system": serving._merge_inline_system}
    if thinking_disabled:
        settings["disabled_thinking_effort"] = await serving._get_disabled_thinking_effort()
    return settings


async def count_reasoning(
    serving: OpenAIServingChat,
    chat: ChatCompletionRequest,
    *,
    prompt: list[int],
    token_ids: list[int],
) -> int:
    """How many tokens of an answer are reasoning, as vLLM's chat route counts them.

    By the parser that the model has; 0 without one.

    Args:
        serving: of the application.
        chat: what was asked.
        prompt: its tokens.
        token_ids: those of one choice.
    """
    if serving.parser_cls is None:
        return 0
    renderer = serving.renderer

    def count() -> int:
        tokenizer = renderer.get_tokenizer()
        settings = serving._effective_chat_template_kwargs(chat)
        parser = serving._make_parser(chat, tokenizer, settings)
        parser.set_prompt_token_ids(prompt)
        # Some parsers count while they parse.
        parser.parse(
            tokenizer.decode(token_ids, skip_special_tokens=False),
            chat,
            enable_auto_tools=serving.enable_auto_tools,
            model_output_token_ids=token_ids,
        )
        return parser.count_reasoning_tokens(token_ids)

    # Where vLLM parses, off the event loop.
    return await make_async(count, executor=renderer._executor)()
