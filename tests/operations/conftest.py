from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.operations.page_browser import CHROMIUM


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", metavar="FOLDER", help="keep pictures of the page's views there")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def troubles() -> list[str]:
    """What went wrong in the browser."""
    return []
