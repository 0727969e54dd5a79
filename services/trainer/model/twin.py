"""A small model of the same architecture: same code and features, random weights, a second to run.

What is decided before a model is loaded, and what must not need its weights, is tried on it.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from services.trainer.experts.share import EXPERTS

WINDOW = 7
"""Tokens that a layer of a twin sees, where its model has windows."""

VOCABULARY = 128
_HEADS, _WIDTH, _INNER, _EXPERTS = 4, 64, 96, 8
_MAX_PARAMETERS = 400_000_000
_NAMES_OF_A_LAYER = ("layer_idx", "layer_id", "layer_number", "layer_index")


class NoTwin(Exception):
    """No small model can be made from the configuration."""


def make_twin(config: Any, *, wide: bool = True) -> Any:
    """A small transformers model with the features of `config`, in float32 on the CPU.

    Kept are head sizes, rotations, multipliers, caps and routing; width, experts and
    vocabulary are cut, windows are `WINDOW` tokens, and layers are left out once every kind
    of layer has come. Its attention is the eager one, its weights come from a fixed seed, and
    the random state of the process is left alone.

    Args:
        config: transformers' configuration of a causal model; not changed.
        wide: whether layers of the model's own width are tried where narrow ones fail.

    Raises:
        NoTwin: its code refuses every smaller configuration.
    """
    problem: Exception | None = None
    for narrow in (True, False) if wide else (True,):
        for cut in (True, False):
            try:
                return _build(_small(config, narrow=narrow, cut=cut))
            except Exception as error:  # noqa: BLE001  (code of any architecture runs here)
                problem = problem or error
    raise NoTwin(f"{type(problem).__name__}: {problem}")


def layers_of(causal: Any) -> nn.ModuleList | None:
    """The list of decoder layers, whatever the architecture calls it, or None."""
    count = causal.config.get_text_config().num_hidden_layers
    for module in causal.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    return None


def _build(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        twin = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        )
        _draw_weights(twin)
    twin.eval()
    with torch.no_grad():
        twin(input_ids=torch.arange(2 * WINDOW)[None], use_cache=False)
    return twin


@torch.no_grad()
def _draw_weights(twin: Any) -> None:
    """Weights so large that every layer, norm and bias shows in the logits."""
    for parameter in twin.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn_like(parameter))
        else:
            parameter.normal_(std=parameter[0].numel() ** -0.5)
    head = twin.get_output_embeddings()
    if head is not None:
        head.weight.mul_(8.0)  # logits beyond the bend of a soft cap


def _small(config: Any, *, narrow: bool, cut: bool) -> Any:
    small = copy.deepcopy(config)
    small.tie_word_embeddings = False
    text = small.get_text_config()
    for one in _configurations(small):
        _shrink(one, narrow=narrow)
        if one is not text and getattr(one, "num_hidden_layers", None):
            _keep_layers(one, 1)
    with torch.device("meta"):
        large = AutoModelForCausalLM.from_config(small, attn_implementation="eager")
    layers = layers_of(large)
    if cut and layers is not None:
        _keep_layers(text, min(len(layers), max(2, _last_new_kind(layers) + 1)))
        with torch.device("meta"):
            large = AutoModelForCausalLM.from_config(small, attn_implementation="eager")
    count = sum(parameter.numel() for parameter in large.parameters())
    if count > _MAX_PARAMETERS:
        raise NoTwin(f"it cannot be made narrower, and {count} parameters are too many to try")
    return small


def _configurations(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", ()):
        inner = getattr(config, name, None)
        if inner is not None:
            yield from _configurations(inner)


def _shrink(config: Any, *, narrow: bool) -> None:
    for name, value in list(vars(config).items()):
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if "vocab_size" in name:
            setattr(config, name, VOCABULARY)
        elif name in ("pad_token_id", "bos_token_id", "eos_token_id") and value >= VOCABULARY:
            setattr(config, name, 0)
        elif ("window" in name or name == "attention_chunk_size") and "layers" not in name:
            setattr(config, name, min(value, WINDOW))
        elif "intermediate" in name or name in ("n_inner", "ffn_dim"):
            setattr(config, name, min(value, _INNER))
        elif name in EXPERTS:
            setattr(config, name, min(value, _experts(config)))
    if narrow:
        _narrow(config)


def _experts(config: Any) -> int:
    groups = getattr(config, "n_group", None) or 1
    return max(_EXPERTS, 2 * (getattr(config, "num_experts_per_tok", None) or 1), 2 * groups)


def _narrow(config: Any) -> None:
    heads = getattr(config, "num_attention_heads", None)
    hidden = getattr(config, "hidden_size", None)
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads <= _HEADS:
        return
    shared = getattr(config, "num_key_value_heads", None)
    if isinstance(shared, int):
        config.num_key_value_heads = max(1, _HEADS * shared // heads)
    config.num_attention_heads = _HEADS
    own = isinstance(getattr(config, "head_dim", None), int)
    config.hidden_size = _WIDTH if own else hidden // heads * _HEADS


def _keep_layers(text: Any, count: int) -> None:
    before = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == before:
            setattr(text, name, value[:count])
    text.num_hidden_layers = count


def _last_new_kind(layers: nn.ModuleList) -> int:
    """Index of the first layer after which none is of a new kind."""
    seen: set[str] = set()
    last = 0
    for index, layer in enumerate(layers):
        kind = f"{layer}{[_attributes(module) for module in layer.modules()]}"
        if kind not in seen:
            seen.add(kind)
            last = index
    return last


def _attributes(module: nn.Module) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _NAMES_OF_A_LAYER and isinstance(value, bool | int | float | str | None)
    }
