"""The longest row of a model whose rotary frequencies follow the largest position of a pass."""

from typing import Any

_LIMITS = {
    "longrope": "original_max_position_embeddings",
    "dynamic": "max_position_embeddings",
}
"""By kind of rotary embedding, the key up to which frequencies are the same for every position."""


def longest_row(text: Any) -> int | None:
    """Tokens up to which a row's logprobs do not depend on the rows of its pass.

    Models with `longrope` or `dynamic` rotary embeddings compute other frequencies for all rows of
    a pass once one of them is longer than this. Engines choose the frequencies once, by their
    `max_model_len`, so no longer row can be trained as it was sampled.

    Args:
        text: transformers' configuration of the language model.

    Returns:
        The number of tokens; None where frequencies never change.
    """
    parameters = getattr(text, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return None
    found = []
    for one in (parameters, *parameters.values()):
        kind = one.get("rope_type") if isinstance(one, dict) else None
        if kind in _LIMITS:
            key = _LIMITS[kind]
            found.append(int(one.get(key) or getattr(text, key)))
    return min(found, default=None)
