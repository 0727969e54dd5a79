"""Reads back, after a load, what a model computes with, and compares it with what was sent.

Scores find what changes logprobs by more than rounding does; this finds the rest. A layer may have
packed its weight, where nothing can read it. Its product with a unit vector is a column of the
weight all the same, and exact: whatever the kernel, it adds zeros. So a sample of the columns of
each weight is compared, a different one with every version. Every row, and every scale, is in it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.observability.log import Log
from services.rollout_server.engine.vllm_patches.loading.load_plan import Traced

_COLUMNS = 8
_TOLERANCE = 2.0**-10
"""Relative: GPUs may be told to multiply float32 with ten bits. Less than bfloat16 can express."""
_SUBNORMAL = 1e-37
"""Kernels may take what is smaller for zero."""

log = Log("rollout_server")


class ReadBack:
    """The parameters of one worker's model that can be read back."""

    def __init__(self) -> None:
        self._right: set[str] = set()  # in one of the versions so far
        self._wrong: set[str] = set()  # in the version before
        self._unreadable: set[str] = set()

    @torch.no_grad()
    def check(self, traced: Sequence[Traced], block: Tensor, version: int) -> str | None:
        """Compare what was loaded last.

        A parameter that was never right and is wrong for the second time, after another load, is
        none that can be read back; from then on the canary alone stands for it.

        Args:
            traced: the parameters.
            block: the memory of the version, uint8.
            version: its number, which chooses the columns.

        Returns:
            Which parameters are not what was sent; None: all are.
        """
        looked_at = [one for one in traced if one.label not in self._unreadable]
        wrong = {one.label for one in looked_at if not _is_as_sent(one, block, version)}
        unreadable = (wrong & self._wrong) - self._right
        if unreadable:
            log.warning("weights not read back", count=len(unreadable), first=min(unreadable))
        self._unreadable |= unreadable
        self._right |= {one.label for one in looked_at} - wrong
        self._wrong = wrong - unreadable
        if not self._wrong:
            return None
        return f"{min(self._wrong)} and {len(self._wrong) - 1} others are not what was sent"


def _is_as_sent(one: Traced, block: Tensor, version: int) -> bool:
    columns = slice(None)
    if len(one.shape) == 2:
        start = version * _COLUMNS % one.shape[1]
        columns = slice(start, min(start + _COLUMNS, one.shape[1]))
    here = _product(one, columns) if one.multiplies else _elements(one, columns)
    for row, part in one.rows:
        sent = part.of(block)
        sent = sent[:, columns] if len(one.shape) == 2 else sent
        found = here[row : row + len(sent)]
        if not torch.allclose(found, sent.to(found.dtype), rtol=_TOLERANCE, atol=_SUBNORMAL):
            return False
    return True


def _product(one: Traced, columns: slice) -> Tensor:
    count = columns.stop - columns.start
    device = one.module.weight.device
    units = torch.zeros(count, one.shape[1], dtype=one.dtype, device=device)
    units[:, columns] = torch.eye(count, dtype=one.dtype, device=device)
    product: Tensor = one.module.quant_method.apply(one.module, units)
    return product.t().cpu()


def _elements(one: Traced, columns: slice) -> Tensor:
    parameter: Tensor = getattr(one.module, one.name)
    return (parameter[:, columns] if len(one.shape) == 2 else parameter).cpu()
