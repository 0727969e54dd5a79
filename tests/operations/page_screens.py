"""Every view of the page over every kind of run, in a browser window of every kind."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from benchmarks import page_open
from services.page.http_app import page_app
from services.page.report.report import report
from services.page.run_store import FolderRunStore
from tests.operations.page_browser import opened, served
from tests.page.made_run import make_run, write_log, write_usage
from tests.page.several_runs import make, make_runs

LOOKS = (Path(__file__).parent / "page_looks.js").read_text(encoding="utf-8")
DEVICES = {"desk": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}
SCHEMES = ("light", "dark")
MANY = 100_000
TRACEBACK = f"Traceback (most recent call last):\n  {'step ' * 80}\nRuntimeError: out of memory"

_OF_A_RUN = {
    "learning": "Reward and held-out pass rate",
    "tasks": "What became of",
    "timeline": "Shares of this time",
    "groups": "most tokens first",
    "groups/1": "Rewards and advantages",
    "trajectories": "several policy versions",
    "trajectories/0": "Answer, token by token",
    "ledger": "The ledger balances",
    "replicas": "Pushes of weights",
    "log": "warnings and errors",
    "setup": "Configuration, as it was resolved",
}
_OF_A_FAILED_RUN = _OF_A_RUN | {
    "learning": "The run broke",
    "tasks": "No graded group yet.",
    "timeline": "No timeline.",
}
del _OF_A_FAILED_RUN["trajectories/0"]
_OF_SEVERAL = {
    "": "Compare: choose two or more",
    "?run=slow&run=fast&run=broken&smoothing=0.5": "Changed keys",
    "report": "What the figures are",
}
VIEWS = {
    "one": _OF_A_RUN,
    "failed": _OF_A_FAILED_RUN,
    "three": _OF_SEVERAL,
    "many": _OF_A_RUN,
}
"""A text of each view, by the kind of run."""

ALL = [
    (case, device, scheme, view)
    for case, views in VIEWS.items()
    for device in DEVICES
    for scheme in SCHEMES
    for view in views
]


def name_of(view: str) -> str:
    """Of a picture and of a test."""
    return {"": "list"}.get(view, "compare" if view.startswith("?") else view.replace("/", "-"))


class Screens:
    """One browser window at a time; the runs of each kind are made when it first shows them."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser, self._folder = browser, folder
        self._servers, self._urls = ExitStack(), dict[str, str]()
        self._key: tuple[str, str] | None = None
        self._page: Page | None = None
        self.troubles: list[str] = []
        self.hosts: set[str] = set()

    def __enter__(self) -> "Screens":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._servers.close()

    def show(self, case: str, device: str, scheme: Any, view: str) -> Page:
        """The window with a view that is drawn to its end."""
        page = self._window(device, scheme)
        self.troubles.clear()
        self.hosts.clear()
        if case not in self._urls:
            self._urls[case] = _MAKE[case](self._folder / case, self._servers)
        url = self._urls[case]
        if view == "report":
            page.goto((self._folder / case / "report.html").as_uri())
        else:
            page.goto(f"{url}{view}")
            expect(page.locator("main[aria-busy=false] .panel").first).to_be_visible()
        expect(page.locator("body")).to_contain_text(VIEWS[case][view])
        page.evaluate("document.fonts.ready")
        page.evaluate("new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")
        return page

    def _window(self, device: str, scheme: Any) -> Page:
        if self._page is None or self._key != (device, scheme):
            self._close()
            size = DEVICES[device]
            self._page = opened(self._browser, self.troubles, viewport=size, color_scheme=scheme)
            self._page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
            self._key = device, scheme
        return self._page

    def _close(self) -> None:
        if self._page is not None:
            self._page.context.close()
            self._page = None


def _one(folder: Path, servers: ExitStack) -> str:
    path = make_run(folder)
    write_log(path)
    write_usage(path)
    return servers.enter_context(served(page_app(FolderRunStore(path)))) + "#/test-1/"


def _failed(folder: Path, servers: ExitStack) -> str:
    path = make(folder, "broken", {0: 0.1}, done=1, error=TRACEBACK)
    write_log(path)
    return servers.enter_context(served(page_app(FolderRunStore(path)))) + "#/broken/"


def _three(folder: Path, servers: ExitStack) -> str:
    make_runs(folder)
    store = FolderRunStore(folder)
    url = servers.enter_context(served(page_app(store))) + "#/"
    content = report(store.comparison(["slow", "fast", "broken"]))
    (folder / "report.html").write_text(content, encoding="utf-8")
    return url


def _many(folder: Path, servers: ExitStack) -> str:
    path = page_open.make_run(folder, MANY, 8)
    return servers.enter_context(served(page_app(FolderRunStore(path)))) + "#/many-1/"


_MAKE: dict[str, Callable[[Path, ExitStack], str]] = {
    "one": _one,
    "failed": _failed,
    "three": _three,
    "many": _many,
}
