"""A bucket's forms on the wire, without a wire."""

import pytest
import torch

from services.transport.bucket import Encoded, Kind, apply_changes, changes


def bucket(count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, generator=generator).to(dtype).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changed", [0, 1, 37, 1000])
def test_every_form_leads_to_the_very_bytes(dtype: torch.dtype, changed: int) -> None:
    old = bucket(1000, dtype)
    new = old.clone()
    new.view(dtype)[:changed] += 1
    got = changes(new, old, 4, dtype.itemsize)
    assert (got is None) == (changed == 1000), "all of it is new"
    if got is not None:
        assert got.kind is (Kind.DELTA if changed else Kind.SAME)
        apply_changes(got, old, dtype.itemsize)
        assert torch.equal(old, new)


def test_a_sign_of_zero_and_a_nan_are_changes_like_any_other() -> None:
    old = torch.tensor([0.0, 1.0] + [2.0] * 50).view(torch.uint8)
    new = old.clone()
    new.view(torch.float32)[:2] = torch.tensor([-0.0, float("nan")])
    got = changes(new, old, 1, 4)
    assert got is not None
    assert got.kind is Kind.DELTA
    apply_changes(got, old, 4)
    assert torch.equal(old, new)
    same = changes(new, new.clone(), 1, 4)
    assert same is not None
    assert same.kind is Kind.SAME, "a NaN is not equal to itself, its bits are"


def test_a_delta_is_only_sent_where_it_is_smaller() -> None:
    old = bucket(1000, torch.bfloat16)
    sizes = {}
    for changed in (10, 200, 300):
        new = old.clone()
        new.view(torch.int16)[:changed] += 1
        got = changes(new, old, 1, 2)
        sizes[changed] = got.payload.numel() if got is not None else None
    assert sizes == {10: 60, 200: 1200, 300: None}


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [([0] * 9, "inside an element"), ([200, 0, 0, 0, 1, 2, 3, 4], "outside its bucket")],
)
def test_a_payload_that_no_sender_makes_is_refused(payload: list[int], complaint: str) -> None:
    wrong = Encoded(kind=Kind.DELTA, base=1, payload=torch.tensor(payload, dtype=torch.uint8))
    with pytest.raises(ValueError, match=complaint):
        apply_changes(wrong, bucket(10, torch.float32), 4)
