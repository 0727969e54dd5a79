"""Starting a process of the scene without importing here what only it needs."""

import importlib
from typing import Any


def run(role: str, *args: Any) -> None:
    """Be what `children` calls `role`."""
    getattr(importlib.import_module("tests.chaos.children"), role)(*args)
