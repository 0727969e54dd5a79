"""Shapes of widely used models, so that nothing must be fetched to size them.

Each is what the model's config.json on the Hugging Face Hub says.
"""

from services.trainer.sizing.shape import ModelShape


def _qwen3(layers: int, hidden: int, intermediate: int, heads: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocabulary=151936,
        tied=tied,
        qk_norm=True,
    )


def _qwen25(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, *, tied: bool
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocabulary=151936 if tied else 152064,
        tied=tied,
    )


def _llama3(layers: int, hidden: int, intermediate: int, heads: int) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
        tied=False,
    )


KNOWN_SHAPES = {
    "Qwen/Qwen2.5-0.5B": _qwen25(24, 896, 4864, 14, 2, tied=True),
    "Qwen/Qwen2.5-1.5B": _qwen25(28, 1536, 8960, 12, 2, tied=True),
    "Qwen/Qwen2.5-3B": _qwen25(36, 2048, 11008, 16, 2, tied=True),
    "Qwen/Qwen2.5-7B": _qwen25(28, 3584, 18944, 28, 4, tied=False),
    "Qwen/Qwen2.5-14B": _qwen25(48, 5120, 13824, 40, 8, tied=False),
    "Qwen/Qwen2.5-32B": _qwen25(64, 5120, 27648, 40, 8, tied=False),
    "Qwen/Qwen2.5-72B": _qwen25(80, 8192, 29568, 64, 8, tied=False),
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 17408, 40, tied=False),
    "Qwen/Qwen3-32B": _qwen3(64, 5120, 25600, 64, tied=False),
    "Qwen/Qwen3-30B-A3B": ModelShape(
        layers=48,
        hidden=2048,
        intermediate=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocabulary=151936,
        tied=False,
        qk_norm=True,
        experts=128,
        active_experts=8,
    ),
    "mistralai/Mixtral-8x7B-v0.1": ModelShape(
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=32000,
        tied=False,
        experts=8,
        active_experts=2,
    ),
    "meta-llama/Llama-3.1-8B": _llama3(32, 4096, 14336, 32),
    "meta-llama/Llama-3.1-70B": _llama3(80, 8192, 28672, 64),
}
"""By the name on the hub."""
