"""A checkpoint's adapter as a folder in the PEFT format, which transformers and vLLM load."""

import json
import shutil
from pathlib import Path

from safetensors.torch import save_file

from services.protocol.errors import InvalidInput
from services.trainer.checkpoints.checkpoint_choice import choose
from services.trainer.checkpoints.checkpoint_manifest import CheckpointManifest
from services.trainer.checkpoints.checkpoint_parameters import CheckpointParameters
from services.trainer.checkpoints.export import Exported
from services.trainer.config import LoraConfig
from services.trainer.model.lora import ADAPTER_PARAMETERS, PEFT_PREFIX


def export_adapter(source: Path, folder: Path) -> Exported:
    """Write the adapter of a checkpoint to a new folder, float32 as it was trained.

    Args:
        source: a checkpoint, or a run directory, of which the newest good one is taken.
        folder: must not exist; appears whole or not at all.

    Raises:
        InvalidInput: there is no good checkpoint, it has no adapter, or the folder exists.
    """
    if folder.exists():
        raise InvalidInput("folder", str(folder), "It exists already; choose a new one.")
    checkpoint, manifest, refused = choose(source)
    if manifest.lora is None:
        fix = "It has no adapter: the model itself was trained. Leave --adapter out."
        raise InvalidInput("source", str(checkpoint), fix)
    writing = folder.with_name(f".exporting-{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        writing.mkdir(parents=True)
        _write(CheckpointParameters(checkpoint), manifest, manifest.lora, writing)
        writing.rename(folder)
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    return Exported(checkpoint=checkpoint, refused=refused)


def _write(
    stored: CheckpointParameters, manifest: CheckpointManifest, lora: LoraConfig, folder: Path
) -> None:
    names = [name for name in stored.shapes if name.endswith(ADAPTER_PARAMETERS)]
    tensors = {f"{PEFT_PREFIX}{name}.weight": one for name, one in stored.load(names).items()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": manifest.model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({name.split(".")[-2] for name in names}),
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
