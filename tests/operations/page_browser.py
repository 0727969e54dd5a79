"""Debian's chromium, and the page served to it."""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 60_000
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium: apt-get install --no-install-recommends chromium"
)


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Where an application is served meanwhile."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listener.close()


def opened(browser: Browser, troubles: list[str], **context: Any) -> Page:
    """A page whose errors are added to `troubles`."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    return page
