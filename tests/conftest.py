"""Which tests run beside each other, on two workers."""

from pathlib import Path

import pytest

_CLUSTERS = ("cluster", "demo", "chaos")
"""Folders whose tests fill the machine by themselves: one at a time, and first."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One group for all clusters, one for every other file."""
    here = Path(__file__).parent

    def folder(item: pytest.Item) -> str:
        return item.path.relative_to(here).parts[0]

    items.sort(key=lambda item: folder(item) not in _CLUSTERS)
    for item in items:
        group = "clusters" if folder(item) in _CLUSTERS else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
