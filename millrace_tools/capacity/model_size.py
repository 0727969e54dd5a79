"""How large a model is, read from its files without loading it."""

from functools import partial
from math import prod
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from services.protocol.model_source import name_or_path, on_hub


def parameters_of(model: str) -> int | None:
    """Parameters in a model's safetensors files; None where they are not on this machine.

    `model` is a folder or `hf://owner/name`, of which only the local cache is asked.
    """
    folder = folder_of(model)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    if not files:
        return None
    try:
        return sum(map(_elements, files))
    except (OSError, SafetensorError):
        return None


def folder_of(model: str) -> Path | None:
    """Where a model's files are here; None where they are not."""
    if not on_hub(model):
        return Path(model)
    find = partial(snapshot_download, local_files_only=True)
    try:
        return Path(find(name_or_path(model)))
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None


def _elements(file: Path) -> int:
    with safe_open(file, framework="np") as tensors:
        return sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
