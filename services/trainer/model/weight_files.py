"""A model's weight files on this node, downloaded from the Hub where they are not yet."""

from pathlib import Path

from huggingface_hub import snapshot_download

from services.protocol.model_source import name_or_path, on_hub
from services.trainer.model.stored_tensors import DamagedWeights, StoredTensor, stored_tensors
from services.transport.base_digest import weight_files, weight_map

_WHOLE = "model.safetensors"


def download(model: str) -> None:
    """Have all files of a model on this node that a trainer reads; does nothing for a folder.

    Raises:
        InvalidInput: the index of its weights is damaged.
        OSError: the Hub does not give them.
    """
    if on_hub(model):
        name = name_or_path(model)
        folder = Path(snapshot_download(name, allow_patterns="*.json"))
        wanted = set(weight_map(folder).values()) or {_WHOLE}
        snapshot_download(name, allow_patterns=sorted(wanted))


def tensors_of(model: str) -> dict[str, StoredTensor]:
    """The tensors of a model that is on this node, by name.

    Raises:
        InvalidInput: it has no weights in safetensors files, or not all that their index names.
        DamagedWeights: a file is damaged.
        OSError: a file cannot be read.
    """
    files = weight_files(model)
    stored = stored_tensors(files)
    for name, file in weight_map(files[0].parent).items():
        if name not in stored:
            raise DamagedWeights(f"{file} lacks {name}, which it has by the index")
    return stored
