"""What vLLM's Messages route knows of the model's chat template; it has no public name."""

from typing import Any

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages


async def messages_settings(
    serving: AnthropicServingMessages, *, thinking_disabled: bool
) -> dict[str, Any]:
    """Arguments of `AnthropicServingMessages.to_chat_completion_request`.

    Args:
        serving: of the application.
        thinking_disabled: the request switches thinking off.
    """
    settings: dict[str, Any] = {"merge_inline_system": serving._merge_inline_system}
    if thinking_disabled:
        settings["disabled_thinking_effort"] = await serving._get_disabled_thinking_effort()
    return settings
