"""What a replica is asked for: the whole answer, or the rest of one choice.

Pure functions over the body that vLLM's render returned. What continuing changes, and why
each rule is here: token budgets shrink by what was made; a choice whose last token already
ended it is not resubmitted; one seed used twice would repeat one random stream; and what
depends on the generated part of a sequence (penalties, grammars) would see that part as
prompt, so such a request is made again from the prompt, with the same seed.
"""

import secrets
from typing import Any

from services.router.answering.journal import ChoiceJournal

ENGINE_DEFAULT_MAX_TOKENS = 16
"""vLLM's default. Render leaves out fields that are equal to it, and generate reads an absent
`max_tokens` as "until the context is full"."""

_HISTORY_DEPENDENT = (
    "presence_penalty",
    "frequency_penalty",
    "structured_outputs",
    "bad_words",
    "repetition_detection",
    "thinking_token_budget",
    "extra_args",
    "watermarking",
)
"""Not `repetition_penalty`: it counts prompt and generated tokens alike."""

_MAX_LOGPROBS = 20
"""What vLLM allows unless it is told otherwise."""

_SEEDS = 1 << 31
_MASK_64 = (1 << 64) - 1


def prepared(
    rendered: dict[str, Any],
    request_id: str,
    *,
    shown_early: bool = False,
    beside_sampled: bool = False,
    interval: int | None = None,
    logprobs: bool = True,
) -> dict[str, Any]:
    """The rendered request as the router sends it: with text and usage, nearly always streaming.

    Args:
        rendered: what render answered.
        request_id: the answer's id.
        shown_early: the client sees tokens before the answer is finished. An answer that can
            only be made again from the prompt then gets a seed, so that it comes out the same.
        beside_sampled: as many alternatives are wanted as asked for even when the sampled
            token is none of them; generate counts it as one.
        interval: tokens in a chunk after the first; None for the engine's own way. An answer
            that cannot be longer comes in one piece.
        logprobs: somebody wants to know them.
    """
    params = dict(rendered["sampling_params"])
    params.setdefault("max_tokens", ENGINE_DEFAULT_MAX_TOKENS)
    if params.get("logprobs") is None:
        params["logprobs"] = 0 if logprobs else None
    elif beside_sampled and 0 < params["logprobs"] < _MAX_LOGPROBS:
        params["logprobs"] += 1
    if shown_early and params.get("seed") is None and _depends_on_history(params):
        params["seed"] = secrets.randbelow(_SEEDS)
    if interval is not None:
        params["stream_interval"] = interval
    stream = interval is None or params["max_tokens"] > interval
    return {
        **rendered,
        "request_id": request_id,
        "sampling_params": params,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream else None,
        "output_mode": "text",
    }


def hindrance(request: dict[str, Any]) -> str | None:
    """The sampling parameter that forbids cutting this request, None if there is none."""
    return _depends_on_history(request["sampling_params"])


def _depends_on_history(params: dict[str, Any]) -> str | None:
    return next((name for name in _HISTORY_DEPENDENT if params.get(name)), None)


def whole_again(request: dict[str, Any], journal: ChoiceJournal) -> dict[str, Any]:
    """The request for one choice from the prompt, with the random stream that it had."""
    params = {**request["sampling_params"], "n": 1}
    if params.get("seed") is not None:
        params["seed"] += journal.index
    return {
        **request,
        "request_id": _segment_id(request, journal),
        "sampling_params": params,
    }


def continuation(request: dict[str, Any], journal: ChoiceJournal) -> dict[str, Any]:
    """The request for the rest of one choice, from prompt and generated tokens.

    Without tokens that is all of it. Stop strings are left out once there are some: the
    engine would look for them only in the new part, and would look at garbage when the cut
    is inside a character. The router looks for them itself (`continued_text`).
    """
    made = len(journal.token_ids)
    if not made:
        return whole_again(request, journal)
    params = {**request["sampling_params"], "n": 1, "stop": []}
    params["max_tokens"] -= made
    params["min_tokens"] = max(0, (params.get("min_tokens") or 0) - made)
    if params.get("seed") is not None:
        params["seed"] = segment_seed(params["seed"], journal.index, journal.segments)
    params.pop("output_text_buffer_length", None)
    return {
        **request,
        "request_id": _segment_id(request, journal),
        "token_ids": request["token_ids"] + journal.token_ids,
        "sampling_params": params,
    }


def _segment_id(request: dict[str, Any], journal: ChoiceJournal) -> str:
    return f"{request['request_id']}-{journal.index}-{journal.segments}"


def finished_at_cut(
    request: dict[str, Any], journal: ChoiceJournal, end_tokens: frozenset[int]
) -> tuple[str, int | None] | None:
    """Finish and stop reason of a choice that was complete when it was cut, else None.

    Args:
        request: as prepared.
        journal: the choice.
        end_tokens: end-of-sequence tokens that the model is known to use.
    """
    params, made = request["sampling_params"], len(journal.token_ids)
    if made and made > (params.get("min_tokens") or 0):
        last = journal.token_ids[-1]
        if last in (params.get("stop_token_ids") or ()):
            return "stop", last
        if last in end_tokens and not params.get("ignore_eos"):
            return "stop", None
    if made >= params["max_tokens"]:
        return "length", None
    return None


def segment_seed(seed: int, index: int, segment: int) -> int:
    """The seed of one later segment of one choice.

    vLLM gives choice i of a request `seed + i`; a segment that starts at the prompt keeps
    that, a later one gets a seed mixed with its number (splitmix64's finaliser).
    """
    base = seed + index
    mixed = (base + segment * 0x9E3779B97F4A7C15) & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return (mixed ^ (mixed >> 31)) >> 1
