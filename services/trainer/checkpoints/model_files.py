"""Files of a Hugging Face folder besides weights: configuration, tokenizer, chat template."""

import os
import shutil
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from services.observability.log import Log
from services.protocol.errors import InvalidInput
from services.protocol.model_source import model_folder, name_or_path, on_hub

FOLDER = "model"
"""Of a checkpoint: where they are kept, so that it can be exported when the model is gone."""

_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "LICENSE*", "NOTICE*")
_WEIGHTS = "*.index.json"
_log = Log("trainer")


def copy_model_files(model: str, into: Path) -> list[Path]:
    """Copy them from the model that a run started from; returns the copies.

    A model that is gone, or a Hub that cannot be reached, is logged: it must not cost a run
    its checkpoint.

    Raises:
        OSError: the folder cannot be read or the copies not be written.
    """
    into.mkdir()
    source = _folder(model)
    if source is None:
        return []
    found = {path for pattern in _PATTERNS for path in source.glob(pattern) if path.is_file()}
    return [_copy(path, into / path.name) for path in found if not path.match(_WEIGHTS)]


def _copy(path: Path, to: Path) -> Path:
    shutil.copyfile(path, to)
    with to.open("rb") as copied:
        os.fsync(copied.fileno())
    return to


def _folder(model: str) -> Path | None:
    try:
        if not on_hub(model):
            return model_folder(model)
        patterns = list(_PATTERNS)
        return Path(
            snapshot_download(
                name_or_path(model), allow_patterns=patterns, ignore_patterns=_WEIGHTS
            )
        )
    except (InvalidInput, LocalEntryNotFoundError) as error:
        _log.warning("model_files_missing", model=model, why=str(error))
        return None
