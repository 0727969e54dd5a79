"""One HTML file: it has no script, and its policy forbids to load anything."""

import base64
import hashlib
from pathlib import Path
from xml.etree.ElementTree import Element

from services.page.report.elements import el, text_of

_CSS = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def document(title: str, body: Element) -> str:
    """The text of a whole file, in the style of all reports."""
    return text_of(el("html", {"lang": "en"}, _head(title), body))


def _head(title: str) -> Element:
    digest = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    return el(
        "head",
        None,
        el("meta", {"charset": "utf-8"}),
        el("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        el("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        el("title", None, f"{title} · Millrace"),
        el("style", None, _CSS),
    )
