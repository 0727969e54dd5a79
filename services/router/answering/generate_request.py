"""A client's own generate request, made fit for a journal."""

import secrets
from typing import Any

from services.protocol.rollout_server import HISTORY_DEPENDENT, UNMASKED
from services.router.placement.reservation import Reservation
from services.router.request.client_request import ClientRequest
from services.router.request.generate_numbers import generate_numbers

_SEEDS = 1 << 31


def generate_request(
    ask: ClientRequest, reservation: Reservation, *, logprobs: bool, interval: int | None
) -> dict[str, Any]:
    """What a replica generates from.

    Args:
        ask: has the prompt's tokens.
        reservation: where; says how long an answer can be.
        logprobs: the client or a recorded session needs them.
        interval: tokens in a chunk after the first; None for the engine's own way.
    """
    given: dict[str, Any] = ask.body["sampling_params"]
    params = given | generate_numbers(given)
    if params.get("max_tokens") is None:
        params["max_tokens"] = max(1, reservation.max_model_len - len(ask.body["token_ids"]))
    if ask.fixed is not None:
        params |= UNMASKED | ask.fixed.sampling
        params["max_tokens"] = min(params["max_tokens"], ask.fixed.max_tokens)
    if logprobs and params.get("logprobs") is None:
        params["logprobs"] = 0
    if ask.stream and params.get("seed") is None and any(map(params.get, HISTORY_DEPENDENT)):
        # It can be continued elsewhere only if it comes out the same from the prompt on.
        params["seed"] = secrets.randbelow(_SEEDS)
    if interval is not None:
        params["stream_interval"] = interval
    return {
        **ask.body,
        "model": reservation.model,
        "request_id": ask.answer_id,
        "sampling_params": params,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
