"""HTML elements. Text only ever becomes text: nothing here turns a string into markup."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None


def el(tag: str, attributes: Mapping[str, object] | None = None, *children: Child) -> Element:
    """An element; attributes and children that are None are left out."""
    given = {name: str(value) for name, value in (attributes or {}).items() if value is not None}
    made = Element(tag, given)
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif child is not None and len(made):
            made[-1].tail = (made[-1].tail or "") + child
        elif child is not None:
            made.text = (made.text or "") + child
    return made


def table(head: Sequence[Child], rows: Sequence[Sequence[Child]]) -> Element:
    """A table that scrolls sideways where it is wider than the screen."""
    made = el(
        "table",
        None,
        el("thead", None, el("tr", None, *(_cell("th", one) for one in head))),
        el("tbody", None, *(el("tr", None, *(_cell("td", one) for one in row)) for row in rows)),
    )
    return el("div", {"class": "scroll"}, made)


def _cell(tag: str, content: Child) -> Element:
    return (
        content if isinstance(content, Element) and content.tag == tag else el(tag, None, content)
    )


def text_of(root: Element) -> str:
    """A whole document; what UTF-8 cannot say is replaced."""
    text = "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")
