"""The rest of one choice, after it was cut: its request, and its text.

The request is made by pure functions over the one that a replica prepared. What continuing
changes, and why each rule is here: token budgets shrink by what was made; a choice whose last
token already ended it is not resubmitted; one seed used twice would repeat one random stream; and
what depends on the generated part of a sequence (penalties, grammars) would see that part as
prompt, so such a request is made again from the prompt, with the same seed.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from services.protocol.rollout_server import HISTORY_DEPENDENT
from services.router.answering.journal import ChoiceJournal
from services.router.errors import RequestFailed

ENGINE_DEFAULT_MAX_TOKENS = 16
"""vLLM's default. What a replica tells leaves out fields that are equal to it, and generate reads
an absent `max_tokens` as "until the context is full"."""

Derender = Callable[[dict[str, Any]], Awaitable[Any]]
"""Posts one body to a replica's `/v1/completions/derender`."""

_MASK_64 = (1 << 64) - 1
_SEED_TOKENS = 32
"""Decoding is seeded with the end of the prompt; vLLM reads only the last few tokens of it."""


def history_dependence(request: dict[str, Any]) -> str | None:
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


class ContinuedText:
    """Decodes and ends the text of one cut choice.

    An engine decodes a continuation as if the tokens before the cut were prompt. A character
    that is cut in two then comes out wrong (vLLM repeats the whole prompt), text that the dead
    replica held back for stop strings is lost, and a stop string across the cut is missed. So
    after a cut the text is decoded anew from the journal's tokens by the streaming `derender`
    call of any replica. Its state travels with the choice, so the next cut costs nothing;
    without a cut none of this runs.

    Args:
        journal: the choice; its text and, for stop strings, its end are set here.
        request: as prepared.

    Attributes:
        looks_for_stops: every new token must be decoded at once.
    """

    def __init__(self, journal: ChoiceJournal, request: dict[str, Any]) -> None:
        params = request["sampling_params"]
        stop = params.get("stop") or []
        self._stops: list[str] = [stop] if isinstance(stop, str) else list(stop)
        self.looks_for_stops = bool(self._stops)
        self._include_stop = bool(params.get("include_stop_str_in_output"))
        self._min_tokens = params.get("min_tokens") or 0
        self._journal, self._request = journal, request
        self._cut = len(journal.token_ids)
        self._text = ""
        self._decoded = 0
        self._searched = 0
        self._state: dict[str, Any] | None = None

    async def advance(self, derender: Derender) -> str:
        """Decode the tokens that are new in the journal and return the new visible text.

        Sets the journal's finish when a stop string completes; settles the journal when it
        is finished and all of it is decoded.

        Raises:
            UpstreamBroken: the replica failed; call again with another one.
            RequestFailed: the client was shown text that the tokens do not spell.
        """
        journal = self._journal
        last = self._end_of_text()
        if self._decoded < min(self._cut, last):
            # The engine that made these tokens found no stop string in them.
            await self._decode(min(self._cut, last), derender)
            self._searched = len(self._text)
        while self._decoded < last:
            await self._decode(self._decoded + 1 if self._stops else last, derender)
            if (end := self._stop_at()) is not None:
                text, stop_string = end
                journal.keep_tokens(self._decoded)
                journal.finish_reason, journal.stop_reason = "stop", stop_string
                return self._show(text, finished=True)
        return self._show(self._text, finished=journal.finish_reason is not None)

    def _end_of_text(self) -> int:
        """Tokens that have text: a token that stopped the answer has none."""
        journal, count = self._journal, len(self._journal.token_ids)
        by_token = journal.finish_reason == "stop" and not isinstance(journal.stop_reason, str)
        return count - 1 if by_token and not self._include_stop else count

    async def _decode(self, end: int, derender: Derender) -> None:
        params = self._request["sampling_params"]
        options = {
            name: params[name]
            for name in ("skip_special_tokens", "spaces_between_special_tokens")
            if name in params
        }
        answer = await derender(
            {
                "stream": True,
                "model": self._request.get("model"),
                "generate_chunk": {
                    "request_id": self._request["request_id"],
                    "choices": [
                        {"index": 0, "token_ids": self._journal.token_ids[self._decoded : end]}
                    ],
                },
                "stream_state": self._state,
                "prompt_token_ids": self._request["token_ids"][-_SEED_TOKENS:],
                # Only the options are read; the prompt must be there to be valid.
                "completion_request": {"prompt": "-", **options},
            }
        )
        self._text += answer["chunk"]["choices"][0]["text"]
        self._state, self._decoded = answer["stream_state"], end

    def _stop_at(self) -> tuple[str, str] | None:
        """The text up to the stop string that the last token completed, and the string."""
        begin, self._searched = self._searched, len(self._text)
        if self._decoded <= self._min_tokens:
            return None
        found = [
            (at + len(stop), order, at, stop)
            for order, stop in enumerate(self._stops)
            if (at := self._text.find(stop, max(0, begin - len(stop) + 1))) >= 0
        ]
        if not found:
            return None
        end, _, start, stop = min(found)
        return self._text[: end if self._include_stop else start], stop

    def _show(self, text: str, *, finished: bool) -> str:
        """Make `text` visible, less what a stop string may still take away."""
        journal, shown = self._journal, self._journal.text
        if self._stops and not self._include_stop and not finished:
            text = text[: max(0, len(text) - max(len(stop) for stop in self._stops) + 1)]
        if text.startswith(shown):
            new = text[len(shown) :]
        elif journal.visible:
            raise RequestFailed(502, "text_mismatch", "the answer's tokens do not spell its text")
        else:
            new = text
        journal.replace_text(text)
        journal.settled = finished
        return new
