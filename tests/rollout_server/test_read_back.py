"""Faults of a load are found by reading back: in a stand-in, and in vLLM's engines."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from services.rollout_server.engine.vllm_patches.loading.copies import Part
from services.rollout_server.engine.vllm_patches.loading.load_plan import Traced
from services.rollout_server.weights.read_back import ReadBack

SHAPE = (6, 20)
ENDS_S = 600
WRONG = "{}.weight and 0 others are not what was sent"


class Packed:
    """A layer whose weight only its product shows."""

    def __init__(self, weight: Tensor) -> None:
        self.packed, self.weight = weight.t().contiguous(), torch.empty(0, dtype=weight.dtype)
        self.quant_method = SimpleNamespace(apply=lambda layer, rows: rows @ layer.packed)


def traced(layer: object, label: str = "a.weight", *, multiplies: bool = True) -> Traced:
    """A weight in two pieces, as vLLM fuses them, which lie the other way round in memory."""
    return Traced(
        label=label,
        module=layer,
        name="weight",
        shape=SHAPE,
        dtype=torch.bfloat16,
        rows=tuple(
            (row, Part(start=start, dtype=torch.bfloat16, shape=(3, 20), stride=(20, 1)))
            for row, start in ((0, 120), (3, 0))
        ),
        multiplies=multiplies,
    )


@pytest.fixture
def weight() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(SHAPE).bfloat16()


def memory_of(weight: Tensor) -> Tensor:
    return weight.view(2, 3, 20).flip(0).contiguous().view(-1).view(torch.uint8)


def with_swapped_rows(weight: Tensor) -> Tensor:
    return weight[torch.tensor([0, 4, 2, 3, 1, 5])]


def with_one_row_a_step_off(weight: Tensor) -> Tensor:
    changed = weight.clone()
    changed[3] = (changed[3].view(torch.int16) + 1).view(torch.bfloat16)
    return changed


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("multiplies", [True, False])
def test_a_weight_is_read_back_to_the_last_bit_whichever_columns_are_looked_at(
    weight: Tensor, multiplies: bool, version: int
) -> None:
    for change in (with_swapped_rows, with_one_row_a_step_off, lambda one: one * 1.01):
        for wrong in (False, True):
            here = change(weight) if wrong else weight
            layer = Packed(here) if multiplies else SimpleNamespace(weight=here)
            one, block = traced(layer, multiplies=multiplies), memory_of(weight)
            found = ReadBack().check([one], block, version)
            assert found == (WRONG.format("a") if wrong else None)


def test_a_weight_that_was_never_right_is_left_to_the_canary_at_the_second_load(
    weight: Tensor,
) -> None:
    block, other = memory_of(weight), traced(Packed(weight), "b.weight")
    one, read_back = traced(Packed(weight * 2)), ReadBack()
    assert read_back.check([one, other], block, 1) == WRONG.format("a")
    for version in (1, 2):
        assert read_back.check([one, other], block, version) is None
    other = traced(Packed(weight * 2), "b.weight")
    assert read_back.check([one, other], block, 3) == WRONG.format("b")


def test_a_weight_that_was_right_once_is_never_let_through(weight: Tensor) -> None:
    block, read_back = memory_of(weight), ReadBack()
    assert read_back.check([traced(Packed(weight))], block, 1) is None
    for _ in range(3):
        assert read_back.check([traced(Packed(weight * 2))], block, 2) == WRONG.format("a")
    assert read_back.check([traced(Packed(weight))], block, 2) is None


PROGRAM = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file
from benchmarks import canary
from benchmarks.models import make_model

kind, folder = sys.argv[1], Path(sys.argv[2])
faults, options = canary.CASES[kind]

def tensors(seed):
    made = make_model(folder / str(seed), canary.SHAPE, vocabulary=258, seed=seed, **options)
    return {n: one.bfloat16() for n, one in load_file(made / "model.safetensors").items()}

first, new = tensors(1), tensors(2)
engine = canary.Engine(folder / "1", None)
right = [engine.load(one) for one in (first, new, first)]
found = {}
for name, fault in faults.items():
    if name == canary.UNPACKED:
        engine.load(first)  # which the head then keeps
    found[name] = not engine.load(fault(new, first), new, repack=name != canary.UNPACKED)
engine.close()
print(json.dumps({"right": right, "found": found}))
"""


@pytest.mark.parametrize("kind", ["dense", "tied"])
def test_a_fault_of_a_load_is_read_back_from_a_real_engine(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", PROGRAM, kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["right"] == [True] * 3
    assert told["found"]
    assert all(told["found"].values()), told["found"]
