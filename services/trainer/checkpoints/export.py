"""A checkpoint as a Hugging Face folder, or its adapter in the PEFT format; needs no ranks."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from services.protocol.errors import InvalidInput
from services.protocol.weights.weights import Dtype
from services.trainer.checkpoints.folder import GoodCheckpoint, choose
from services.trainer.checkpoints.frozen_base import FrozenBase
from services.trainer.checkpoints.manifest import CheckpointManifest
from services.trainer.checkpoints.model_files import FOLDER
from services.trainer.checkpoints.parameters import CheckpointParameters
from services.trainer.config import LoraConfig
from services.trainer.experts.names import CheckpointNames, Part
from services.trainer.model.blank import checkpoint_buffers
from services.trainer.model.lora import ADAPTER_PARAMETERS, PEFT_PREFIX

FILE_SIZE = "5GB"


def export(
    source: Path, folder: Path, dtype: Dtype | None = None, *, adapter: bool = False
) -> GoodCheckpoint:
    """Write the weights of a checkpoint, and its model's other files, to a new folder.

    An adapter is merged. No more than one file's tensors are in memory at a time.

    Args:
        source: a checkpoint, or a run directory, of which the newest good one is taken.
        folder: must not exist; appears whole or not at all.
        dtype: of the parameters; that in which they were served if left out. Buffers, such as
            the bias by which DeepSeek-V3 chooses experts, keep theirs.
        adapter: write the adapter alone, in the PEFT format that transformers and vLLM load,
            in float32 as it was trained.

    Returns:
        The checkpoint.

    Raises:
        InvalidInput: there is no good checkpoint, it has no adapter, or the folder exists.
    """
    if folder.exists():
        raise InvalidInput("folder", str(folder), "It exists already; choose a new one.")
    good = choose(source)
    checkpoint, manifest = good.path, good.manifest
    if adapter and manifest.lora is None:
        fix = "It has no adapter: the model itself was trained. Leave --adapter out."
        raise InvalidInput("source", str(checkpoint), fix)
    writing = folder.with_name(f".exporting-{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        if adapter and manifest.lora is not None:
            writing.mkdir(parents=True)
            _write_adapter(checkpoint, manifest.model, manifest.lora, writing)
        else:
            shutil.copytree(checkpoint / FOLDER, writing)
            _Weights(checkpoint, manifest, dtype or manifest.dtype).write(writing)
        writing.rename(folder)
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    return good


class _Weights:
    """What one checkpoint has of a model, and the tensors that a Hugging Face folder has of it."""

    def __init__(self, checkpoint: Path, manifest: CheckpointManifest, dtype: Dtype) -> None:
        self._stored, self._dtype = CheckpointParameters(checkpoint), dtype
        self._buffers: set[str] = set()
        lora = manifest.lora
        self._scale = lora.alpha / lora.rank if lora is not None else 0.0
        self._base = FrozenBase(manifest) if lora is not None else None

    def write(self, folder: Path) -> None:
        """Add weights to a folder with the model's other files."""
        parts = self._parts(folder)
        blank = {
            part: torch.empty(shape, dtype=self._written_as(name), device="meta")
            for name, made in parts.items()
            for part, shape in made
        }
        split = split_torch_state_dict_into_shards(blank, max_shard_size=FILE_SIZE)
        for file, names in split.filename_to_tensors.items():
            save_file(dict(self._tensors(parts, set(names))), folder / file, {"format": "pt"})
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            text = json.dumps(index, indent=1)
            (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        _name_dtype(folder / "config.json", self._dtype)

    def _parts(self, folder: Path) -> dict[str, list[Part]]:
        """Name and shape of the tensors made of each parameter and buffer; a tied one is left
        out."""
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            blank = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        buffers = checkpoint_buffers(blank)
        self._buffers = set(buffers)
        wanted = dict(blank.named_parameters()) | buffers
        missing = wanted.keys() - self._stored.shapes.keys()
        if missing and self._base is None:
            fix = f"Its parameter {min(missing)} is not in the checkpoint."
            raise InvalidInput("model", str(folder), fix)
        names = CheckpointNames(str(config.get_text_config().model_type))
        return {name: names.parts(name, tuple(one.shape)) for name, one in wanted.items()}

    def _tensors(
        self, parts: dict[str, list[Part]], wanted: set[str]
    ) -> Iterator[tuple[str, Tensor]]:
        needed = [name for name, made in parts.items() if wanted & {part for part, _ in made}]
        merged = self._merged({name: parts[name] for name in needed})
        for name in needed:
            made = parts[name]
            flat = merged.pop(name).to(self._written_as(name)).reshape(-1)
            ends = accumulate((torch.Size(shape).numel() for _, shape in made), initial=0)
            for (part, shape), (start, end) in zip(made, pairwise(ends), strict=True):
                if part in wanted:
                    yield part, flat[start:end].reshape(shape).clone()

    def _written_as(self, name: str) -> torch.dtype:
        if name in self._buffers:
            return self._stored.dtypes[name]
        dtype: torch.dtype = getattr(torch, self._dtype)
        return dtype

    def _merged(self, parts: dict[str, list[Part]]) -> dict[str, Tensor]:
        """Parameters, with what an adapter adds to them."""
        adapters = {}
        for name in parts:
            layer = name.removesuffix(".weight")
            both = [f"{layer}.{kind}" for kind in ADAPTER_PARAMETERS]
            if name != layer and all(one in self._stored.shapes for one in both):
                adapters[name] = both
        kept = [name for name in parts if name in self._stored.shapes]
        loaded = self._stored.load([*kept, *chain.from_iterable(adapters.values())])
        for name in parts.keys() - loaded.keys():
            assert self._base is not None, "what was not trained is the base's"
            loaded[name] = self._base.parameter(parts[name])
        for name, (a, b) in adapters.items():
            weight = loaded[name].float()
            loaded[name] = torch.addmm(weight, loaded[b], loaded[a], alpha=self._scale)
        return loaded


def _write_adapter(checkpoint: Path, model: str, lora: LoraConfig, folder: Path) -> None:
    stored = CheckpointParameters(checkpoint)
    names = [name for name in stored.shapes if name.endswith(ADAPTER_PARAMETERS)]
    tensors = {f"{PEFT_PREFIX}{name}.weight": one for name, one in stored.load(names).items()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({name.split(".")[-2] for name in names}),
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")


def _name_dtype(path: Path, dtype: Dtype) -> None:
    """Have the configuration name the element type that the weights have now."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for part in (config, *(one for one in config.values() if isinstance(one, dict))):
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = dtype.value
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m services.trainer.checkpoints.export`, which `millrace export` runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", type=Dtype)
    parser.add_argument("--adapter", action="store_true")
    arguments = parser.parse_args(argv)
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        done = export(
            arguments.source, arguments.folder, arguments.dtype, adapter=arguments.adapter
        )
    except InvalidInput as problem:
        errors.print(f"error: {problem.field}: {problem.value!r} -> {problem.fix}")
        return 2
    for why in done.refused:
        errors.print(f"warning: passed over {why}")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{arguments.folder} holds {done.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
