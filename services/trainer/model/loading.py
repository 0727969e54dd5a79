"""Fills a sharded model from its checkpoint: each rank reads its own slices and nothing else.

A rank holds its shards, and a few pieces of tensors that are being read.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from blake3 import blake3
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions

from services.observability.log import Log
from services.trainer.model.sources import Source, sources_of
from services.trainer.model.stored_tensors import DamagedWeights, StoredTensor
from services.trainer.model.weight_files import tensors_of

THREADS = 4
"""That read at the same time."""

PIECE_BYTES = 16 << 20
"""Read at once by a thread, unless one row is longer."""

LOG_S = 10.0
"""Between two lines of progress in the log."""

Progress = Callable[[int, int], None]
"""Called with the bytes that this rank has read and those that it will have read."""

Box = tuple[tuple[int, int], ...]
"""First index and the one after the last, in each dimension."""

_log = Log("trainer")
_of_thread = threading.local()


@dataclass(kw_only=True)
class Held:
    """A parameter or buffer of a model, which several of its modules may share.

    Attributes:
        value: it; its elements are on the meta device until they are loaded.
        names: in the model, without the modules that transformers does not know.
        places: the modules that hold it, and its name in each.
        sources: the tensors of the checkpoint that it is made of, under the first of its names
            that the checkpoint has.
        copies: the same under its other names.
    """

    value: Tensor
    names: list[str] = field(default_factory=list)
    places: list[tuple[nn.Module, str]] = field(default_factory=list)
    sources: Sequence[Source] = ()
    copies: Sequence[Sequence[Source]] = ()

    @property
    def local(self) -> Tensor:
        """This rank's elements, to be written to."""
        value = self.value.detach()
        return value.to_local() if isinstance(value, DTensor) else value

    def put(self, value: Tensor) -> None:
        """Have the model hold another tensor in its place."""
        self.value = value
        for module, key in self.places:
            setattr(module, key, value)

    def allocate(self, device: torch.device, shards_device: torch.device) -> None:
        """Give it memory for this rank's elements, where it has none."""
        value = self.value
        if not value.is_meta:
            return
        # Shards that wait on the host are pinned here, or FSDP would pin all in the first pass.
        sharded = isinstance(value, DTensor)
        empty = torch.empty_like(
            value,
            device=shards_device if sharded else device,
            pin_memory=sharded and shards_device != device,
        )
        if isinstance(value, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=value.requires_grad)
        self.put(empty)


def load_weights(
    causal: Any,
    model: str,
    *,
    seed: int,
    device: torch.device,
    shards_device: torch.device,
    progress: Progress | None = None,
) -> None:
    """Fill a sharded transformers model with the weights of its checkpoint.

    Tensors on the meta device get memory; others are written over. What the checkpoint lacks is
    initialised from `seed`, on any number of ranks alike.

    Args:
        causal: the model.
        model: the checkpoint, as a configuration names it.
        seed: of parameters that it lacks.
        device: where memory is taken for what all ranks hold.
        shards_device: where it is taken for a rank's shards.
        progress: is told how far the rank is.

    Raises:
        InvalidInput: the model has no weights in safetensors files.
        DamagedWeights: they cannot be used.
        OSError: they cannot be read.
    """
    held = list(_held(causal))
    own = {name for name, module, key in _named(causal) if key in getattr(module, "own", ())}
    sources = sources_of(causal, tensors_of(model), own)
    for one in held:
        found = [sources[name] for name in one.names if name in sources]
        one.sources, one.copies = found[0] if found else (), found[1:]
    persistent = causal.state_dict().keys()
    fresh = [
        one
        for one in held
        if not one.sources and (one.value.is_meta or isinstance(one.value, nn.Parameter))
    ]
    lacking = [one.names[0] for one in fresh if one.names[0] in persistent - own]
    if lacking and dist.get_rank() == 0:
        _log.warning("checkpoint_lacks_parameters", model=model, initialised=lacking)
    for one in held:
        one.allocate(device, shards_device)
    report = _Report(model, progress)
    _read(list(chain.from_iterable(_pieces(one, one.sources) for one in held)), _fill, report)
    copies = [_pieces(one, copy) for one in held for copy in one.copies]
    _read(list(chain.from_iterable(copies)), _compare, report)
    _initialise(causal, held, fresh, seed)


def _named(causal: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Full name, module and the name there, of every parameter and buffer."""
    for prefix, module in causal.named_modules():
        for key, _ in chain(
            module.named_parameters(recurse=False), module.named_buffers(recurse=False)
        ):
            yield f"{prefix}.{key}" if prefix else key, module, key


def _held(causal: nn.Module) -> Iterator[Held]:
    found: dict[int, Held] = {}
    for name, module, key in _named(causal):
        value = getattr(module, key)
        one = found.setdefault(id(value), Held(value=value))
        one.names.append(name)
        one.places.append((module, key))
    return iter(found.values())


def local_box(value: Tensor) -> Box:
    """This rank's part of a tensor, as `torch.chunk` divides a dimension among ranks."""
    box = [(0, size) for size in value.shape]
    if isinstance(value, DTensor):
        for place, placement in enumerate(value.placements):
            if not isinstance(placement, Shard):
                continue
            first, last = box[placement.dim]
            ranks, rank = value.device_mesh.size(place), value.device_mesh.get_local_rank(place)
            length = -(-(last - first) // ranks)
            start = min(first + rank * length, last)
            box[placement.dim] = (start, min(start + length, last))
    return tuple(box)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Rows of a stored tensor, and where this rank holds them.

    Attributes:
        name: in the checkpoint.
        stored: the tensor.
        rows: first, and the one after the last.
        others: the parts of the other dimensions.
        target: has the shape of what they leave.
    """

    name: str
    stored: StoredTensor
    rows: tuple[int, int]
    others: tuple[slice, ...]
    target: Tensor

    def read(self) -> Tensor:
        """The elements, on the CPU and in the type of the file, until this thread reads again."""
        rows = self.stored.rows(*self.rows, _buffer(self.bytes))
        return rows[(slice(None), *self.others)].view(self.target.shape)

    @property
    def bytes(self) -> int:
        """To be read from the file."""
        return (self.rows[1] - self.rows[0]) * self.stored.row_bytes


def _pieces(held: Held, sources: Sequence[Source]) -> Iterator[_Piece]:
    box, local = local_box(held.value), held.local
    for source in sources:
        ends = [start + size for start, size in zip(source.start, source.shape, strict=True)]
        common = [
            (max(first, start), min(last, end))
            for (first, last), start, end in zip(box, source.start, ends, strict=True)
        ]
        if any(first >= last for first, last in common):
            continue
        target = local[
            tuple(
                slice(first - at, last - at)
                for (first, last), (at, _) in zip(common, box, strict=True)
            )
        ]
        inside = [
            (first - at, last - at) for (first, last), at in zip(common, source.start, strict=True)
        ]
        if len(source.shape) > len(source.stored.shape):  # an expert's, without its number
            target, inside = target[0], inside[1:]
        if not inside:  # a scalar
            target, inside = target.view(1), [(0, 1)]
        yield from _cut(source, inside, target)


def _cut(source: Source, inside: list[tuple[int, int]], target: Tensor) -> Iterator[_Piece]:
    (first, last), *others = inside
    count = max(1, PIECE_BYTES // max(1, source.stored.row_bytes))
    for start in range(first, last, count):
        end = min(start + count, last)
        yield _Piece(
            name=source.name,
            stored=source.stored,
            rows=(start, end),
            others=tuple(slice(*one) for one in others),
            target=target[start - first : end - first],
        )


def _fill(piece: _Piece) -> None:
    piece.target.copy_(piece.read())


def _compare(piece: _Piece) -> None:
    expected = piece.read().to(piece.target.device, piece.target.dtype)
    if not torch.equal(piece.target, expected):
        raise DamagedWeights(
            f"{piece.name} in {piece.stored.file} differs from the tensor that config.json says "
            "it is the same as; set tie_word_embeddings to false there"
        )


def _buffer(size: int) -> Tensor:
    """This thread's memory to read into. Pieces with memory of their own would leave malloc with
    several times as much as is in use."""
    held: Tensor | None = getattr(_of_thread, "buffer", None)
    if held is None or held.numel() < size:
        held = _of_thread.buffer = torch.empty(max(size, PIECE_BYTES), dtype=torch.uint8)
    return held


class _Report:
    """Tells the caller and the log how far this rank is."""

    def __init__(self, model: str, progress: Progress | None) -> None:
        self._model, self._progress = model, progress
        self._done, self._total = 0, 0
        self._logged = time.monotonic()

    def expect(self, count: int) -> None:
        """So many bytes more are to be read."""
        self._total += count

    def add(self, count: int) -> None:
        """So many bytes have been read."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)
        if dist.get_rank() == 0 and time.monotonic() - self._logged > LOG_S:
            self._logged = time.monotonic()
            read, total = self._done >> 20, self._total >> 20
            _log.info("model_loading", model=self._model, read_mib=read, total_mib=total)


def _read(pieces: Sequence[_Piece], work: Callable[[_Piece], None], report: _Report) -> None:
    """Do the work on all pieces, in a few threads; the first error ends it."""
    report.expect(sum(piece.bytes for piece in pieces))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as pool:
        running = {pool.submit(work, piece): piece for piece in pieces}
        try:
            for done in as_completed(running):
                done.result()
                report.add(running[done].bytes)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _initialise(causal: Any, held: Sequence[Held], fresh: Sequence[Held], seed: int) -> None:
    """Fill what no file has, one module after another, each from a seed of its own."""
    for one in held:
        # By this mark transformers leaves what was loaded as it is.
        one.value._is_hf_initialized = True  # type: ignore[attr-defined]
    by_module: dict[int, list[Held]] = {}
    for one in fresh:
        by_module.setdefault(id(one.places[0][0]), []).append(one)
    parents = {n: m for n, m in causal.named_modules() if isinstance(m, PreTrainedModel)}
    for together in by_module.values():
        module = together[0].places[0][0]
        kept = [one.value for one in together]
        for one in together:
            one.put(_blank(one.value))
        name = together[0].names[0]
        with torch.random.fork_rng(devices=[]), guard_torch_init_functions():
            digest = blake3(f"{seed}/{name}".encode()).digest(length=7)
            torch.default_generator.manual_seed(int.from_bytes(digest, "little"))
            initialise: Any = getattr(module, "initialise", None)
            if initialise is not None:
                initialise()
            else:
                _parent(parents, name)._init_weights(module)
        for one, value in zip(together, kept, strict=True):
            whole = one.value.detach()
            one.put(value)
            if whole.is_floating_point() and whole.isnan().any():
                raise DamagedWeights(f"{one.names[0]} is not in the checkpoint")
            one.local.copy_(whole[tuple(slice(*part) for part in local_box(value))])


def _blank(value: Tensor) -> Tensor:
    """A whole tensor of the same kind on the CPU; not a number anywhere, if it can be."""
    fill = float("nan") if value.is_floating_point() else 0
    blank = torch.full(value.shape, fill, dtype=value.dtype)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(blank, requires_grad=value.requires_grad)
    return blank


def _parent(models: dict[str, PreTrainedModel], name: str) -> PreTrainedModel:
    """The innermost transformers model that holds a parameter: it knows how to initialise it."""
    around = [one for one in models if not one or name.startswith(f"{one}.")]
    return models[max(around, key=len)]
