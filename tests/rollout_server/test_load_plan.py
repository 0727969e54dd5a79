"""What a plan takes from a version's memory as it is; `test_families` loads whole models by one."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from vllm.model_executor.model_loader.reload import layerwise, meta

from services.rollout_server.engine.vllm_patches.loading import load_plan
from services.rollout_server.engine.vllm_patches.loading.copies import Copies, Part


def block_of(*tensors: Tensor) -> Tensor:
    """Float32 tensors one after another, as bytes."""
    return torch.cat([one.reshape(-1) for one in tensors]).view(torch.uint8)


def floats(block: Tensor, start: int, *shape: int) -> Tensor:
    return block.view(torch.float32)[start:][: torch.Size(shape).numel()].view(shape)


def stacked(target: Tensor, block: Tensor) -> None:
    target[:2].copy_(floats(block, 2, 2, 3))
    target[2:].copy_(floats(block, 8, 1, 3))


def exchanged(target: Tensor, block: Tensor) -> None:
    target[1:].copy_(floats(block, 2, 2, 3))
    target[:1].copy_(floats(block, 8, 1, 3))


def doubled(target: Tensor, block: Tensor) -> None:
    stacked(target, block)
    target.mul_(2)


def of_another_type(target: Tensor, block: Tensor) -> None:
    target.copy_(block[8:17].view(3, 3))


def with_padding(target: Tensor, block: Tensor) -> None:
    incomplete(target, block)
    target[2:].fill_(0)


def twice(target: Tensor, block: Tensor) -> None:
    target.copy_(floats(block, 0, 3, 3))
    incomplete(target, block)


def a_column(target: Tensor, block: Tensor) -> None:
    target[:, :2].copy_(floats(block, 2, 3, 2))


def incomplete(target: Tensor, block: Tensor) -> None:
    target[:2].copy_(floats(block, 2, 2, 3))


def from_elsewhere(target: Tensor, block: Tensor) -> None:
    target.copy_(floats(block, 2, 3, 3).clone())


@pytest.mark.parametrize(
    ("fill", "lies_there"),
    [
        (stacked, True),
        (exchanged, False),
        (doubled, False),
        (of_another_type, False),
        (incomplete, False),
        (from_elsewhere, False),
    ],
)
def test_a_parameter_is_taken_from_memory_where_it_lies_there_in_one_piece_and_unchanged(
    fill: Callable[[Tensor, Tensor], None], lies_there: bool
) -> None:
    block, target = block_of(torch.arange(12.0)), torch.empty(3, 3)
    with Copies() as copies:
        fill(target, block)
    part = copies.source_of(target, block)
    assert (part is not None) is lies_there
    if part is not None:
        other = block_of(torch.arange(100.0, 112.0))
        assert torch.equal(part.of(other), floats(other, 2, 3, 3))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("fill", "rows"),
    [
        (stacked, {0: 2, 2: 8}),
        (exchanged, {1: 2, 0: 8}),
        (incomplete, {0: 2}),
        (with_padding, {0: 2}),
        (twice, {0: 2}),
        (doubled, {}),
        (from_elsewhere, {}),
        (a_column, {}),
    ],
)
def test_rows_are_known_that_are_copied_and_not_written_again(
    fill: Callable[[Tensor, Tensor], None], rows: dict[int, int], device: str
) -> None:
    block, target = block_of(torch.arange(12.0)), torch.empty(3, 3, device=device)
    with Copies() as copies:
        fill(target, block)
    found = copies.rows_of(target, block)
    assert {row: part.start // 4 for row, part in found} == rows
    if device == "cpu":
        for row, part in found:
            assert torch.equal(part.of(block), target[row : row + part.shape[0]])


def test_a_part_is_the_same_view_of_another_versions_memory() -> None:
    block = block_of(torch.arange(12.0))
    part = Part(start=8, dtype=torch.float32, shape=(3, 2), stride=(1, 3))
    assert torch.equal(part.of(block), floats(block, 2, 2, 3).t())


def test_a_note_does_not_keep_the_memory_in_which_a_layer_was_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layerwise, "_layerwise_process", lambda layer, info: None)
    loader = inspect.signature(lambda param, loaded: None)
    call = loader.bind(param=torch.empty(3), loaded=torch.ones(3))
    layer, info = torch.nn.Module(), SimpleNamespace(loaded_weights=[("weight", call)])
    with load_plan._noted() as noted:
        layerwise._layerwise_process(layer, info)
    ((noted_layer, ((name, bound),)),) = noted
    assert (noted_layer, name, list(bound.arguments)) == (layer, "weight", ["loaded"])


def test_what_a_plan_does_for_a_layer_is_what_vllm_does() -> None:
    """The calls around `_layerwise_process`, which the plan makes itself."""
    begin = inspect.getsource(layerwise.initialize_layerwise_reload)
    for done in (
        "info.kernel_tensors = get_layer_params_buffers(layer)",
        "info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)",
        "restore_layer_on_meta(layer, info)",
    ):
        assert done in begin
    assert "tensor.is_meta" in inspect.getsource(meta.materialize_layer), "others are kept"
    process = inspect.getsource(layerwise._layerwise_process)
    assert "for name, args in info.loaded_weights" in process
    assert "_layerwise_process(layer, info)" in inspect.getsource(
        layerwise.make_online_process_loader
    )
