"""A digest of a frozen model's files: equal in two processes that hold the same model.

An adapter means nothing without the exact model that it was trained on, and that model does
not travel with it.
"""

import json
from pathlib import Path

from blake3 import blake3

from services.protocol.errors import InvalidInput
from services.protocol.model_source import model_folder, name_or_path, on_hub

INDEX = "model.safetensors.index.json"
"""Of a model in several files: which file holds which tensor."""

_WHOLE = "model.safetensors"
_WEIGHTS = "*.safetensors"
_PIECE_BYTES = 16 << 20


def base_digest(model: str) -> str:
    """Digest of a model's weight files, in the order of their names; blake3 hex.

    Args:
        model: as a configuration names it; of the Hub only what has been downloaded is read.

    Raises:
        InvalidInput: it has no weights in safetensors files.
    """
    hashed = blake3(max_threads=blake3.AUTO)
    piece = bytearray(_PIECE_BYTES)
    for file in weight_files(model):
        with file.open("rb", buffering=0) as opened:  # a mapped file would count as memory
            while count := opened.readinto(piece):
                hashed.update(memoryview(piece)[:count])
    return hashed.hexdigest()


def weight_files(model: str) -> list[Path]:
    """A model's weight files, in the order of their names.

    Raises:
        InvalidInput: there are none, or not all that its index names.
    """
    folder = _folder(model)
    # A folder from the Hub may hold the same weights in another layout besides.
    if (folder / INDEX).is_file():
        files = [folder / name for name in sorted(set(weight_map(folder).values()))]
    elif (folder / _WHOLE).is_file():
        files = [folder / _WHOLE]
    else:
        files = sorted(folder.glob(_WEIGHTS))
    if not files:
        fix = f"There are no weights in {folder}: give a folder with *.safetensors."
        raise InvalidInput("model", model, fix)
    for file in files:
        if not file.is_file():
            fix = f"{file} is missing, and {INDEX} names it: copy or download it again."
            raise InvalidInput("model", model, fix)
    return files


def weight_map(folder: Path) -> dict[str, str]:
    """The file of each tensor, as the index in a model's folder says; empty without an index.

    Raises:
        InvalidInput: the index cannot be read.
    """
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        named = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in named.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = f"{path} is damaged ({error!r}): copy or download it again."
        raise InvalidInput("model", str(folder), fix) from None


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
