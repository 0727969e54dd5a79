"""The message of an answer, and how many of its tokens are reasoning.

vLLM's `derender` makes the message and does not count; its chat route counts for the usage.
"""

import json
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter
from starlette.responses import Response
from vllm.entrypoints.scale_out.derender.api_router import derender_chat_completion
from vllm.entrypoints.scale_out.token_in_token_out.protocol import DerenderChatRequestUnion

from services.protocol.rollout_server import COUNTED, REASONING_TOKENS
from services.rollout_server.engine.vllm_patches.route_parts import count_reasoning
from services.rollout_server.http.checked_body import checked

_ORDER: TypeAdapter[Any] = TypeAdapter(DerenderChatRequestUnion)


async def parse_answer(request: Request) -> Response:
    """See `services.protocol.rollout_server.PARSE_ANSWER`."""
    body = json.loads(await request.body())
    token_ids = body.pop(COUNTED)
    order = checked(_ORDER.validate_python, body)
    parsed = await derender_chat_completion(order, request)
    if parsed.status_code != 200:
        return parsed
    chat = request.app.state.openai_serving_chat
    prompt = order.prompt_token_ids or []
    count = await count_reasoning(chat, order.chat_request, prompt=prompt, token_ids=token_ids)
    told = b'{"%b":%d,' % (REASONING_TOKENS.encode(), count)
    return Response(told + bytes(parsed.body).removeprefix(b"{"), media_type="application/json")
