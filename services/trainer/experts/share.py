"""How much of a mixture's expert weights a token meets, by the model's configuration."""

from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names by which configurations say how many experts a layer has."""
_CHOSEN = ("num_experts_per_tok", "top_k_experts")


def share_met(text: Any, parameter: str) -> float:
    """Share of a parameter's elements that one token goes through, 0 to 1.

    Args:
        text: transformers' configuration of the language model.
        parameter: its name; only those of experts are met in part, and are counted whole where
            the configuration does not say how many experts a token meets.
    """
    experts, chosen = _first(text, EXPERTS), _first(text, _CHOSEN)
    if ".experts." not in parameter or experts is None or chosen is None:
        return 1.0
    return chosen / experts


def _first(text: Any, names: tuple[str, ...]) -> int | None:
    """The first of the values that is there and not 0."""
    return next((value for name in names if (value := getattr(text, name, None))), None)
