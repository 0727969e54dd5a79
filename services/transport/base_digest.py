"""A digest of a frozen model's files: equal in two processes that hold the same model.

An adapter means nothing without the exact model that it was trained on, and that model does
not travel with it.
"""

import json
from pathlib import Path

from blake3 import blake3

from services.protocol.errors import InvalidInput
from services.protocol.model_source import model_folder, name_or_path, on_hub

_WEIGHTS = "*.safetensors"


def base_digest(model: str) -> str:
    """Digest of a model's weight files, in the order of their names; blake3 hex.

    Args:
        model: as a configuration names it; of the Hub only what has been downloaded is read.

    Raises:
        InvalidInput: it has no weights in safetensors files.
    """
    hashed = blake3(max_threads=blake3.AUTO)
    for file in weight_files(model):
        hashed.update_mmap(file)
    return hashed.hexdigest()


def weight_files(model: str) -> list[Path]:
    """A model's weight files, in the order of their names.

    Raises:
        InvalidInput: there are none, or not all that its index names.
    """
    folder = _folder(model)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        # A folder from the Hub may hold the same weights in another layout besides.
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / name for name in sorted(named)]
    else:
        files = sorted(folder.glob(_WEIGHTS))
    if not files or not all(file.is_file() for file in files):
        fix = "An adapter needs a frozen model: give a folder with weights in *.safetensors."
        raise InvalidInput("model", model, fix)
    return files


def _folder(model: str) -> Path:
    if not on_hub(model):
        return model_folder(model)
    # They come with transformers, and are slow to import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name_or_path(model), local_files_only=True))
    except LocalEntryNotFoundError:
        raise InvalidInput("model", model, "It has not been downloaded to this node.") from None
