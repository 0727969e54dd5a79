"""What a replica is asked for after the first time: the rest of one choice.

Pure functions over the request that a replica prepared. What continuing changes, and why
each rule is here: token budgets shrink by what was made; a choice whose last token already
ended it is not resubmitted; one seed used twice would repeat one random stream; and what
depends on the generated part of a sequence (penalties, grammars) would see that part as
prompt, so such a request is made again from the prompt, with the same seed.
"""

from typing import Any

from services.protocol.rollout_server import HISTORY_DEPENDENT
from services.router.answering.journal import ChoiceJournal

ENGINE_DEFAULT_MAX_TOKENS = 16
"""vLLM's default. What a replica tells leaves out fields that are equal to it, and generate reads
an absent `max_tokens` as "until the context is full"."""

_MASK_64 = (1 << 64) - 1


def hindrance(request: dict[str, Any]) -> str | None:
    """The sampling parameter that forbids cutting this request, None if there is none."""
    params = request["sampling_params"]
    return next((name for name in HISTORY_DEPENDENT if params.get(name)), None)


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
