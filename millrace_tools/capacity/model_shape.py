"""The shape and size of a model, read from its files without loading it."""

import json
from math import prod
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from services.protocol.model_source import name_or_path, on_hub
from services.trainer.sizing.shape import ModelShape

_HUB_S = 5.0


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
