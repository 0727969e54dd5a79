"""Bandwidths of this machine's GPUs, in bytes a second.

python -m services.trainer.self_test.device_bandwidths
"""

import json
import sys
import time
from collections.abc import Callable

import torch

_BYTES = 256 << 20
_ROUNDS = 5


def rate(copy: Callable[[], object], devices: int) -> float:
    """Bytes a second of the fastest of several copies of `_BYTES`."""
    seconds = []
    for _ in range(_ROUNDS + 1):  # the first one sets things up
        began = time.perf_counter()
        copy()
        for device in range(devices):
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return _BYTES / min(seconds[1:])


def main() -> None:
    """Print the slowest GPU of each kind of copy."""
    count = torch.cuda.device_count()
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    there = [torch.empty(_BYTES, dtype=torch.uint8, device=f"cuda:{at}") for at in range(count)]

    def copies(target: torch.Tensor, source: torch.Tensor) -> float:
        return rate(lambda: target.copy_(source, non_blocking=True), count)

    figures: dict[str, float | None] = {
        "host_to_device": min(copies(one, host) for one in there),
        "device_to_host": min(copies(host, one) for one in there),
        "within_device": min(copies(torch.empty_like(one), one) for one in there),
        "device_to_device": min(
            (copies(one, other) for one in there for other in there if one is not other),
            default=None,
        ),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
