"""Draws docs/images/page_*.png: the page over a real run, in Debian's chromium.

    millrace demo                # three times, for the pictures of several runs
    python docs/make_screenshots.py runs/tiny_code-...

Needs chromium (apt-get install --no-install-recommends chromium) and the extra `dev`.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect, sync_playwright

from services.page.reading.run_folder import RunFolder
from services.page.reading.trajectory_index import TrajectoryQuery
from services.page.run_store import FolderRunStore

IMAGES = Path(__file__).parent / "images"
PATIENCE_MS = 120_000
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


@contextmanager
def viewed(run_dir: Path) -> Iterator[str]:
    """Where `millrace view` shows the run."""
    view = [sys.executable, "-m", "millrace_tools.main", "view", str(run_dir), "--port", "0"]
    with subprocess.Popen(view, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://\S+", process.stdout.readline())
            if url is None:
                raise SystemExit("`millrace view` shows nothing")
            yield url[0]
        finally:
            process.terminate()


def telling(run: RunFolder) -> tuple[int, int]:
    """A group whose rewards differ, and one of its trajectories with several policy versions."""
    mixed = run.trajectories(TrajectoryQuery(mixed=True, limit=200))["trajectories"]
    anyone = run.trajectories(TrajectoryQuery(limit=200))["trajectories"]
    chosen = max(mixed or anyone, key=lambda one: (abs(one["advantage"] or 0), one["tokens"]))
    return chosen["group"], chosen["number"]


def seen(browser: Browser, url: str, press: str = "", upto: str = "", **context: Any) -> bytes:
    """A view, when all of it is there, as PNG; scrolled until an element is seen."""
    expect.set_options(timeout=PATIENCE_MS)
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url, wait_until="commit")
    # There is no scroll bar, and so no space for one.
    page.evaluate("document.documentElement.style.scrollbarGutter = 'auto'")
    expect(page.locator("main[aria-busy=false] .panel").first).to_be_visible()
    if page.locator("#tabs a").count():  # of a single run
        expect(page.locator("#link")).to_have_text("following")
    if press:
        page.get_by_role("button", name=press).click()
    if upto:
        page.locator(upto).first.evaluate("one => one.scrollIntoView({ block: 'end' })")
    page.evaluate("document.fonts.ready")
    picture = page.screenshot()
    page.context.close()
    return picture


def draw(browser: Browser, url: str, name: str, press: str = "", **context: Any) -> None:
    """One picture of one view."""
    (IMAGES / f"page_{name}.png").write_bytes(seen(browser, url, press, **context))


def compared(runs: Path) -> str:
    """The address of the newest three runs in a folder, side by side."""
    newest = [run["run_id"] for run in FolderRunStore(runs).runs()[:3]]
    return "#/?" + "&".join([*(f"run={run_id}" for run_id in newest), "smoothing=0.6"])


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    run = RunFolder.open(parser.parse_args().run_dir)
    group, trajectory = telling(run)
    with viewed(run.path) as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        here = f"{root}#/{run.run_id}"
        draw(browser, f"{here}/learning", "learning", viewport=DESK)
        draw(browser, f"{here}/tasks", "tasks", viewport=DESK)
        draw(browser, f"{here}/timeline", "timeline", viewport=DESK)
        draw(browser, f"{here}/groups/{group}", "group", viewport=DESK)
        draw(
            browser,
            f"{here}/trajectories/{trajectory}",
            "trajectory",
            press="logprob gap",
            viewport=DESK,
            color_scheme="dark",
        )
        draw(browser, f"{here}/ledger", "ledger", viewport=DESK, color_scheme="dark")
        draw(browser, f"{here}/timeline", "phone", viewport=PHONE)
        draw_several(browser, run.path.parent)
        browser.close()


def draw_several(browser: Browser, runs: Path) -> None:
    """The list of the runs in a folder, and the newest three side by side."""
    with viewed(runs) as root:
        draw(browser, root, "runs", viewport=DESK)
        draw(browser, f"{root}{compared(runs)}", "compare", viewport=DESK)


if __name__ == "__main__":
    main()
