"""How a configuration names a model: a folder, or a name on the Hugging Face Hub."""

from pathlib import Path

from services.protocol.errors import InvalidInput

HUB_PREFIX = "hf://"
"""A `model` that starts with this is a name on the Hub; anything else is a folder."""


def on_hub(model: str) -> bool:
    """Whether `model` is a name on the Hub."""
    return model.startswith(HUB_PREFIX)


def name_or_path(model: str) -> str:
    """`model` as transformers and vLLM take it."""
    return model.removeprefix(HUB_PREFIX)


def model_folder(model: str) -> Path:
    """The folder of a model that is not on the Hub.

    Raises:
        InvalidInput: there is no such folder, or it holds no checkpoint.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        fix = f"There is no such folder; for a model of the Hub write {HUB_PREFIX}owner/name."
        raise InvalidInput("model", model, fix)
    if not (folder / "config.json").is_file():
        fix = f"No config.json in {folder.resolve()}; give the folder of a Hugging Face checkpoint."
        raise InvalidInput("model", model, fix)
    return folder
