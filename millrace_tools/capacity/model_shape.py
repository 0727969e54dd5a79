"""The shape of a model, read from its config.json: what memory and speed follow from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millrace_tools.capacity.model_size import folder_of


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder as Hugging Face's config.json describes it.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width inside the feed-forward layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        vocabulary: entries of the embedding.
        tied: the output layer is the embedding.
        dense: every token meets every parameter, so that `parameters` can be counted.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    dense: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From the content of a config.json.

        Raises:
            KeyError: it is no decoder of the usual kind.
        """
        heads = int(config["num_attention_heads"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            dense=not any("expert" in key for key in config),
        )

    @property
    def layer_parameters(self) -> int:
        """Weights of one dense decoder layer, the small vectors of its norms left out."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int | None:
        """Weights of the model, norms left out; None where they are not all of one kind."""
        if not self.dense:
            return None
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return embeddings + self.layers * self.layer_parameters

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of KV cache of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize


def shape_of(model: str) -> ModelShape | None:
    """The shape of a folder's model, or of one on the Hub that is in the local cache; None
    where it is not here, or no decoder of the usual kind."""
    folder = folder_of(model)
    if folder is None:
        return None
    try:
        return ModelShape.of(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
