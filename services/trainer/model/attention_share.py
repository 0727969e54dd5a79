"""How much of a forward pass is attention: the shape of a model as its cost."""

from typing import Any

from services.trainer.experts.share import share_met


def attention_share(causal: Any) -> float:
    """`L H d / N` of `services.trainer.batch.batching.row_cost`.

    N leaves out the embedding of tokens, which is looked up, unless the output layer shares it,
    and of a mixture of experts all that a token does not go through. Of L, layers with a
    sliding window or without attention are left out.

    Args:
        causal: a transformers model.
    """
    config = causal.config.get_text_config()
    embedding = causal.get_input_embeddings().weight
    tied = embedding is causal.get_output_embeddings().weight
    multiplied = 0.0 if tied else -float(embedding.numel())
    for name, parameter in causal.named_parameters():
        multiplied += parameter.numel() * share_met(config, name)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
    return float(kinds.count("full_attention") * heads * size / multiplied)
