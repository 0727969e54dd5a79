"""The shape of a decoder, as its config.json describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_EXPERTS = ("num_experts", "num_local_experts")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder as Hugging Face's config.json describes it.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width inside the feed-forward layers, or inside one expert.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        vocabulary: entries of the embedding.
        tied: the output layer is the embedding.
        qk_norm: queries and keys pass through a norm of their own.
        experts: of each layer; 0 for a dense model.
        active_experts: that one token meets.
        counted: the parameters can be counted; not so of experts in a layout that is unknown here.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    experts: int = 0
    active_experts: int = 0
    counted: bool = True

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From the content of a config.json.

        Raises:
            KeyError: it is no decoder of the usual kind.
        """
        heads = int(config["num_attention_heads"])
        experts = int(next((config[name] for name in _EXPERTS if config.get(name)), 0))
        active = int(config.get("num_experts_per_tok") or 0)
        width = config.get("moe_intermediate_size") or config["intermediate_size"]
        # Layers without experts between the others, or experts that all tokens meet.
        mixed = config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1
        shared = any("shared" in key for key in config if "expert" in key)
        named = any("expert" in key for key in config)
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=int(width if experts else config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=str(config.get("model_type", "")).startswith("qwen3"),
            experts=experts,
            active_experts=active,
            counted=not named or bool(experts and active and not mixed and not shared),
        )

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention."""
        return 2 * self.hidden * (self.queries + self.keys)

    @property
    def layer_parameters(self) -> int:
        """Weights of one decoder layer, its experts and router included, its norms left out."""
        if self.experts:
            router = self.experts * self.hidden
            return self.attention_parameters + router + self.expert_parameters
        return self.attention_parameters + 3 * self.hidden * self.intermediate

    @property
    def expert_parameters(self) -> int:
        """Weights of the experts of one decoder layer, an FSDP unit of their own."""
        return self.experts * 3 * self.hidden * self.intermediate

    @property
    def unit_parameters(self) -> int:
        """Weights of one decoder layer's own FSDP unit: all but its experts."""
        return self.layer_parameters - self.expert_parameters

    @property
    def matrix_parameters(self) -> int:
        """Weights of all decoder layers but their experts', which are stacks of matrices."""
        return self.layers * self.unit_parameters

    @property
    def embedding_parameters(self) -> int:
        """Weights of embedding and output layer."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def parameters(self) -> int | None:
        """Weights of the model, norms left out; None where they cannot be counted."""
        if not self.counted:
            return None
        return self.embedding_parameters + self.layers * self.layer_parameters

    @property
    def active_parameters(self) -> int | None:
        """Weights that one token meets, embedding and output layer included."""
        if not self.counted:
            return None
        idle = (self.experts - self.active_experts) * 3 * self.hidden * self.intermediate
        return self.embedding_parameters + self.layers * (self.layer_parameters - idle)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of a LoRA adapter of this rank on every linear layer of the decoder layers."""
        attention = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys)
        feed_forward = 0 if self.experts else 3 * (self.hidden + self.intermediate)
        return rank * self.layers * (attention + feed_forward)

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of KV cache of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize
