"""Has CUDA's driver register memory that processes share, as ranks and engines do with weights.

A program of its own, for what CUDA takes for it goes with the process. Standard library only.
"""

import ctypes
import mmap
import os
import sys
from typing import Any

_BYTES = 64 << 20
_DRIVER = "libcuda.so.1"


def refusal(cuda: Any) -> str:
    """What the driver does not do, with its `CUresult`; empty: it registers the memory.

    Args:
        cuda: the library of the driver.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    file = os.memfd_create("millrace-doctor", os.MFD_CLOEXEC)
    os.ftruncate(file, _BYTES)
    memory = mmap.mmap(file, _BYTES)
    os.close(file)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemHostRegister_v2", (ctypes.c_void_p(address), ctypes.c_size_t(_BYTES), 0)),
    )
    for name, arguments in calls:
        if code := getattr(cuda, name)(*arguments):
            return f"{name}: {code}"
    return ""


def main() -> None:
    """Print the refusal, if there is one."""
    try:
        print(refusal(ctypes.CDLL(_DRIVER)))
    except (OSError, AttributeError) as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)  # the driver takes its time to end


if __name__ == "__main__":
    main()
