"""Writes the tree of folders into ARCHITECTURE.md, from the docstrings of the packages.

`python docs/make_tree.py`, after a folder has come, gone or changed its docstring.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGES = ("services", "environments", "millrace_tools")
_TREE = re.compile(r"(<!-- tree -->\n).*?(<!-- end -->)", re.S)


def page(text: str) -> str:
    """ARCHITECTURE.md with its tree made anew.

    Raises:
        ValueError: it has no place, or several, for the tree.
    """
    made = "```\n" + "\n".join(_lines()) + "\n```\n"
    filled, places = _TREE.subn(lambda mark: mark[1] + made + mark[2], text)
    if places != 1:
        raise ValueError(f"ARCHITECTURE.md has {places} places for the tree, not one")
    return filled


def _lines() -> Iterator[str]:
    rows = [row for name in PACKAGES for row in _rows(ROOT / name)]
    width = max(len(drawn) for drawn, _ in rows) + 2
    for drawn, about in rows:
        yield f"{drawn:<{width}}{about}".rstrip()


def _rows(package: Path) -> Iterator[tuple[str, str]]:
    """Each folder as it is drawn, and the first line of its docstring."""
    yield f"{package.name}/", ""
    folders = _folders(package)
    for folder in folders:
        last = folder is folders[-1]
        yield f"{'└──' if last else '├──'} {folder.name}/", _about(folder)
        below = _folders(folder)
        for inner in below:
            branch = "└──" if inner is below[-1] else "├──"
            yield f"{'    ' if last else '│   '}{branch} {inner.name}/", _about(inner)


def _folders(parent: Path) -> list[Path]:
    """The packages in a folder: those that import stand above those that they import."""
    order = _layers().get(".".join(parent.relative_to(ROOT).parts), [])
    found = [path.parent for path in parent.glob("*/__init__.py")]
    return sorted(found, key=lambda one: (_place(one.name, order), one.name))


def _place(name: str, order: list[str]) -> int:
    return order.index(name) if name in order else len(order)


def _layers() -> dict[str, list[str]]:
    """Of each divided package its modules from top to bottom, by the import contracts."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        container: [name.strip() for layer in contract["layers"] for name in layer.split("|")]
        for contract in settings["tool"]["importlinter"]["contracts"]
        for container in contract.get("containers", [])
    }


def _about(folder: Path) -> str:
    source = (folder / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def main() -> None:
    """Write the tree."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
