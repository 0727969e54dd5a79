"""Hooks that MkDocs calls while it builds the site: pages of the root, links that leave docs/."""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a hook is loaded by its path

from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

ROOT_PAGES = {
    name: f"project/{name.lower()}"
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    if (ROOT / name).exists()
}
"""Pages of the repository's root, and where the site has them."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.M | re.S)


def on_config(config: Any) -> Any:
    """Lead to pages that nobody has given a place."""
    places = set(_paths(config["nav"]))
    left = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    if further := sorted(left - places):
        config["nav"].append({"Further": further})
    return config


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(one)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files below docs/."""
    for name, path in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links between docs/ and the root to where the site has their targets."""
    path = page.file.src_uri
    home = next((name for name, place in ROOT_PAGES.items() if place == path), f"docs/{path}")
    pieces = _FENCE.split(markdown)
    return "".join(
        piece if piece.startswith("```") else _LINK.sub(_leading(home, path), piece)
        for piece in pieces
    )


def _leading(home: str, path: str) -> Any:
    """Rewrites a link of the file `home`, which the site has at `path`."""

    def lead(link: re.Match[str]) -> str:
        words, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        file, mark, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(home), file))
        if wanted in ROOT_PAGES:
            place = ROOT_PAGES[wanted]
        elif wanted.startswith("docs/"):
            place = wanted.removeprefix("docs/")
        elif (ROOT / wanted).exists():  # a file of the repository that is no page: its path
            return f"{words} (`{wanted}`)" if wanted not in words else words
        else:
            raise PluginError(f"{home} links to {target}, which does not exist")
        return f"[{words}]({posixpath.relpath(place, posixpath.dirname(path))}{mark}{anchor})"

    return lead
