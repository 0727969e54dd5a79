"""Every view of the page, at a desk and on a phone, light and dark, with few runs and many.

    pytest tests/operations/test_every_view.py --pictures /tmp/pictures

keeps a picture of each: look at them when the page has changed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.operations.page_browser import needs_chromium
from tests.operations.page_screens import ALL, LOOKS, Screens, name_of

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def screens(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screens]:
    with Screens(browser, tmp_path_factory.mktemp("runs")) as screens:
        yield screens


@pytest.mark.parametrize(
    ("case", "device", "scheme", "view"),
    ALL,
    ids=["-".join((case, name_of(view), device, scheme)) for case, device, scheme, view in ALL],
)
def test_a_view_is_drawn_without_an_error_fits_the_screen_and_can_be_read(
    screens: Screens,
    case: str,
    device: str,
    scheme: str,
    view: str,
    pytestconfig: pytest.Config,
) -> None:
    page = screens.show(case, device, scheme, view)
    if pictures := pytestconfig.getoption("--pictures", None):
        name = "-".join((case, name_of(view), device, scheme))
        page.screenshot(path=Path(pictures) / f"{name}.png", full_page=True)
    assert page.evaluate(LOOKS) == []
    assert screens.troubles == []
    assert len(screens.hosts) <= 1, "it asks no other host"
