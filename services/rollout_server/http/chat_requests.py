"""Requests of the Messages and Responses APIs as the chats that vLLM's own routes make of them.

vLLM converts Messages by itself. Responses it renders without a chat; here the same functions of
vLLM make its messages and tools, so that the prompt is the same to the token.
"""

from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import (
    construct_input_messages,
    construct_tool_dicts,
    should_continue_final_message,
)
from vllm.exceptions import VLLMValidationError

from services.rollout_server.engine.vllm_patches.route_parts import messages_settings

_SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias",
    "skip_special_tokens", "include_stop_str_in_output", "include_reasoning", "priority",
    "cache_salt", "parallel_tool_calls", "stream", "structured_outputs", "vllm_xargs",
    "watermarking", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "user",
)  # fmt: skip
"""Fields that mean the same in a chat."""

_TEXTS = "input_text", "output_text"


async def chat_of_messages(
    request: AnthropicMessagesRequest, serving: AnthropicServingMessages
) -> ChatCompletionRequest:
    """The chat of a Messages request; `serving` knows what the model's template takes."""
    disabled = request.thinking is not None and request.thinking.type == "disabled"
    settings = await messages_settings(serving, thinking_disabled=disabled)
    return serving.to_chat_completion_request(request, **settings)


def chat_of_responses(request: ResponsesRequest) -> ChatCompletionRequest:
    """The chat of a Responses request that has all of its history in `input`.

    Raises:
        VLLMValidationError: the request has what a chat cannot have.
    """
    given = {name: getattr(request, name) for name in _SAME}
    chat = {name: value for name, value in given.items() if value not in (None, [])}
    chat["messages"] = [
        _message(dict(one))
        for one in construct_input_messages(  # type: ignore[no-untyped-call]
            request_instructions=request.instructions, request_input=request.input
        )
    ]
    chat |= _tools(request) | _format(request)
    if request.max_output_tokens is not None:
        chat["max_completion_tokens"] = request.max_output_tokens
    if request.reasoning is not None and request.reasoning.effort is not None:
        chat["reasoning_effort"] = request.reasoning.effort
    if request.is_include_output_logprobs():
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.truncation == "auto":
        chat["truncate_prompt_tokens"] = -1
    if should_continue_final_message(request.input):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    return ChatCompletionRequest.model_validate(chat)


def _tools(request: ResponsesRequest) -> dict[str, Any]:
    tools = construct_tool_dicts(request.tools, request.tool_choice)
    if not tools:
        return {}
    choice: Any = request.tool_choice
    if not isinstance(choice, str):
        if choice.type not in ("function", "custom"):
            raise VLLMValidationError(
                f"tool_choice of type {choice.type!r} is not supported: use auto, none, required "
                "or a function",
                parameter="tool_choice",
            )
        choice = {"type": "function", "function": {"name": choice.name}}
    plain = [{**one, "function": _given(one["function"])} for one in tools]
    return {"tools": plain, "tool_choice": choice}


def _format(request: ResponsesRequest) -> dict[str, Any]:
    """How the text is to be written, in the words of a chat."""
    wanted = request.text.format if request.text is not None else None
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": wanted.name, "schema": wanted.schema_, "strict": wanted.strict}
    return {"response_format": {"type": "json_schema", "json_schema": _given(schema)}}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose parts have the names of a chat's."""
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_part(part) for part in content]
    message.pop("type", None)
    return message


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") in _TEXTS:
        return {"type": "text", "text": part.get("text")}
    if part.get("type") == "input_image" and part.get("image_url"):
        image = {"url": part["image_url"], "detail": part.get("detail")}
        return {"type": "image_url", "image_url": _given(image)}
    return part


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
