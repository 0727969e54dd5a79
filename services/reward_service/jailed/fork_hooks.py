"""The first module of a slot: none that it imports later does anything after a fork.

Such hooks are for parents with threads. A slot has none when it forks, and the hooks would cost a
third of what a short answer does.
"""

import os


def _register(**_: object) -> None:
    return


os.register_at_fork = _register  # type: ignore[assignment]
