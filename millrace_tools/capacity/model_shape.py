"""The shape and size of a model, read from its files without loading it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from services.protocol.model_source import name_or_path, on_hub

_HUB_S = 5.0


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

    def adapter_parameters(self, rank: int) -> int:
        """Weights of a LoRA adapter of this rank on every linear layer of the decoder layers."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        feed_forward = 3 * (self.hidden + self.intermediate)
        return rank * self.layers * (attention + feed_forward)

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of KV cache of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize


def shape_of(model: str) -> ModelShape | None:
    """The shape of a model; None where it is not on this machine, or no decoder of that kind.

    `model` is a folder or `hf://owner/name`, which is looked up in the local cache only.
    """
    folder = _folder_of(model)
    if folder is None:
        return None
    try:
        return ModelShape.of(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def fetched_shape(model: str) -> ModelShape | None:
    """The shape of a model of the hub, from its config.json there: a few kilobytes.

    None where the hub cannot be reached or has no such model.
    """
    if not on_hub(model):
        return None
    try:
        file = hf_hub_download(name_or_path(model), "config.json", etag_timeout=_HUB_S)
        return ModelShape.of(json.loads(Path(file).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def parameters_of(model: str) -> int | None:
    """Parameters in a model's safetensors files; None where they are not on this machine."""
    folder = _folder_of(model)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    try:
        return sum(map(_elements, files)) or None
    except (OSError, SafetensorError):
        return None


def _folder_of(model: str) -> Path | None:
    if not on_hub(model):
        return Path(model)
    try:
        return Path(snapshot_download(name_or_path(model), local_files_only=True))
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None


def _elements(file: Path) -> int:
    with safe_open(file, framework="np") as tensors:
        return sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
