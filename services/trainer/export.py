"""A checkpoint as a Hugging Face folder, file by file, without ranks or a cluster."""

import argparse
import json
import shutil
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoConfig, AutoModelForCausalLM

from services.protocol.errors import InvalidInput
from services.protocol.weights import Dtype
from services.trainer.checkpoint_choice import choose
from services.trainer.checkpoint_manifest import CheckpointManifest
from services.trainer.checkpoint_names import CheckpointNames
from services.trainer.lora import ADAPTER_PARAMETERS
from services.trainer.model_files import FOLDER

FILE_SIZE = "5GB"
_PARAMETERS = "policy.model."


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        checkpoint: it was made of.
        refused: newer checkpoints that are not good, each with the reason.
    """

    checkpoint: Path
    refused: tuple[str, ...]


def export(source: Path, folder: Path, dtype: Dtype | None = None) -> Exported:
    """Write the weights of a checkpoint, and what its model has beside them, to a new folder.

    An adapter is merged. No more than one file's tensors are in memory at a time.

    Args:
        source: a checkpoint, or a run directory, of which the newest good one is taken.
        folder: must not exist; appears whole or not at all.
        dtype: of the weights; that in which they were served if left out.

    Raises:
        InvalidInput: there is no good checkpoint, or the folder exists.
    """
    if folder.exists():
        raise InvalidInput("folder", str(folder), "It exists already; choose a new one.")
    checkpoint, manifest, refused = choose(source)
    writing = folder.with_name(f".exporting-{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        shutil.copytree(checkpoint / FOLDER, writing)
        _Weights(checkpoint, manifest, dtype or manifest.dtype).write(writing)
        writing.rename(folder)
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    return Exported(checkpoint=checkpoint, refused=refused)


class _Weights:
    """The parameters in one checkpoint, and the tensors that a Hugging Face folder has of them."""

    def __init__(self, checkpoint: Path, manifest: CheckpointManifest, dtype: Dtype) -> None:
        self._reader = FileSystemReader(checkpoint)
        self._dtype = dtype
        lora = manifest.lora
        self._scale = lora.alpha / lora.rank if lora is not None else 0.0
        known = self._reader.read_metadata().state_dict_metadata
        self._stored = {
            name.removeprefix(_PARAMETERS): held
            for name, held in known.items()
            if name.startswith(_PARAMETERS) and isinstance(held, TensorStorageMetadata)
        }

    def write(self, folder: Path) -> None:
        """Add weights to a folder with the model's other files."""
        parts = self._parts(folder)
        blank = {
            part: torch.empty(shape, dtype=getattr(torch, self._dtype), device="meta")
            for parameter in parts.values()
            for part, shape in parameter
        }
        split = split_torch_state_dict_into_shards(blank, max_shard_size=FILE_SIZE)
        for file, names in split.filename_to_tensors.items():
            save_file(dict(self._tensors(parts, set(names))), folder / file, {"format": "pt"})
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            text = json.dumps(index, indent=1)
            (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        _name_dtype(folder / "config.json", self._dtype)

    def _parts(self, folder: Path) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
        """Name and shape of the tensors made of each parameter; a tied one is left out."""
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            blank = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        wanted = dict(blank.named_parameters())
        if missing := wanted.keys() - self._stored.keys():
            fix = f"Its parameter {min(missing)} is not in the checkpoint."
            raise InvalidInput("model", str(folder), fix)
        names = CheckpointNames(str(config.get_text_config().model_type))
        return {name: names.parts(name, tuple(one.shape)) for name, one in wanted.items()}

    def _tensors(
        self, parts: dict[str, list[tuple[str, tuple[int, ...]]]], wanted: set[str]
    ) -> Iterator[tuple[str, Tensor]]:
        needed = [name for name, made in parts.items() if wanted & {part for part, _ in made}]
        merged = self._merged(needed)
        for name in needed:
            made = parts[name]
            flat = merged.pop(name).to(getattr(torch, self._dtype)).reshape(-1)
            ends = accumulate((torch.Size(shape).numel() for _, shape in made), initial=0)
            for (part, shape), (start, end) in zip(made, pairwise(ends), strict=True):
                if part in wanted:
                    yield part, flat[start:end].reshape(shape).clone()

    def _merged(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters with what an adapter adds to them."""
        adapters: dict[str, list[str]] = defaultdict(list)
        for name in names:
            layer = name.removesuffix(".weight")
            both = [f"{layer}.{kind}" for kind in ADAPTER_PARAMETERS]
            if name != layer and all(one in self._stored for one in both):
                adapters[name] = both
        loaded = self._load([*names, *(one for both in adapters.values() for one in both)])
        for name, (a, b) in adapters.items():
            loaded[name] = torch.addmm(
                loaded[name].float(), loaded[b], loaded[a], alpha=self._scale
            )
        return loaded

    def _load(self, names: Sequence[str]) -> dict[str, Tensor]:
        state: dict[str, Any] = {
            f"{_PARAMETERS}{name}": torch.empty(
                self._stored[name].size, dtype=self._stored[name].properties.dtype
            )
            for name in names
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # as it should
            load(state, storage_reader=self._reader, no_dist=True)
        return {name.removeprefix(_PARAMETERS): tensor for name, tensor in state.items()}


def _name_dtype(path: Path, dtype: Dtype) -> None:
    """Have the configuration name the element type that the weights have now."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for part in (config, *(one for one in config.values() if isinstance(one, dict))):
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = dtype.value
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m services.trainer.export`, which `millrace export` runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", type=Dtype)
    arguments = parser.parse_args(argv)
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        done = export(arguments.source, arguments.folder, arguments.dtype)
    except InvalidInput as problem:
        errors.print(f"error: {problem.field}: {problem.value!r} -> {problem.fix}")
        return 2
    for why in done.refused:
        errors.print(f"warning: passed over {why}")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{arguments.folder} holds {done.checkpoint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
