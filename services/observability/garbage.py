"""Python's garbage collector, set for what a process of a service does.

At its end a process frees what was frozen like everything else: native modules that find their
functions still alive then (Triton's) would print them all.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 50_000
_GENERATIONS = 20

atexit.register(gc.unfreeze)


def never_collect_what_stays() -> None:
    """Leave alone what lives as long as the process.

    To look at the modules of a service takes 0.08 s, in which its event loop does nothing else.
    """
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """Leave alone what lives as long as the process, and look at the rest less often.

    Open streams survive every collection, so with Python's own thresholds half of the CPU of
    2,048 of them went into looking at them again. Requests leave few cycles behind.
    """
    never_collect_what_stays()
    gc.set_threshold(_YOUNG, _GENERATIONS, _GENERATIONS)


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import many modules without collecting, and never look at them again.

    Modules live as long as the process, yet each collection walks all that there are so far:
    a quarter of the CPU of importing an engine. Processes forked later share them untouched.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
