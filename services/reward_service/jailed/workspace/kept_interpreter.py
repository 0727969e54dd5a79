"""Runs cells of Python in one process, so that their variables stay. Standard library only.

It speaks to the service over a stream socket at descriptor 3: four bytes of length and JSON, each
way. Whatever a cell does to this process, what comes out there is data that the service reads with
bounds and believes nothing of.
"""

import ast
import base64
import builtins
import contextlib
import io
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any

_CHANNEL_FD = 3
_MAX_TRACEBACK = 1 << 16
_MIMES = {"image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", "image/svg+xml": "_repr_svg_"}

Cell = dict[str, Any]


def main() -> None:
    """Run cells until the service hangs up."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    # `site` adds them, which the jail's own interpreter does not import.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    sys.argv = [""]
    sys.path.insert(0, "")
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    while (cell := _receive()) is not None:
        report = _run(cell, module)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a cell may have closed or replaced it
                stream.flush()
        _send(report)


def _receive() -> Cell | None:
    size = _read(4)
    if size is None:
        return None
    content = _read(int.from_bytes(size, "big"))
    return None if content is None else json.loads(content)


def _read(size: int) -> bytes | None:
    content = b""
    while len(content) < size:
        part = os.read(_CHANNEL_FD, size - len(content))
        if not part:
            return None
        content += part
    return content


def _send(report: Cell) -> None:
    content = json.dumps(report).encode()
    rest = memoryview(len(content).to_bytes(4, "big") + content)
    while rest:
        rest = rest[os.write(_CHANNEL_FD, rest) :]


def _run(cell: Cell, module: types.ModuleType) -> Cell:
    name = f"<cell {cell['cell']}>"
    report: Cell = {"cell": cell["cell"], "result": None, "traceback": None, "pictures": []}
    lines = cell["code"].splitlines(keepends=True)
    linecache.cache[name] = (len(cell["code"]), None, lines, name)
    try:
        value = _evaluate(cell["code"], name, module.__dict__)
        if value is not None:
            module.__dict__["_"] = value
            report["result"] = repr(value)[: cell["max_result"]]
        report["pictures"] = _pictures(value, cell["max_pictures"])
    except SystemExit as stop:
        _exit(stop.code)
    except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its result
        report["traceback"] = _traceback(error, name)
    return report


def _evaluate(code: str, name: str, variables: dict[str, Any]) -> object:
    """Run a cell; the value of its last statement if that is an expression."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), variables)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), variables)


def _exit(code: object) -> None:
    """End as the interpreter does, threads and exit functions left alone."""
    status = code if isinstance(code, int) else int(code is not None)
    if code is not None and not isinstance(code, int):
        with contextlib.suppress(Exception):
            print(code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 255)


def _traceback(error: BaseException, name: str) -> str:
    """The traceback from the cell's first frame on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != name:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))[-_MAX_TRACEBACK:]
    except BaseException:  # noqa: BLE001 - the cell's own class may fail to describe itself
        return f"{type(error).__name__}: (it cannot be shown)\n"


def _pictures(value: object, max_bytes: int) -> list[dict[str, str]]:
    """The value's own pictures, and matplotlib's open figures, which are closed."""
    found: list[tuple[str, bytes | str]] = []
    if value is not None and not isinstance(value, type):
        for mime, method in _MIMES.items():
            make = getattr(value, method, None)
            content = make() if callable(make) else None
            if isinstance(content, tuple):  # with metadata, as IPython allows
                content = content[0]
            if isinstance(content, bytes | str):
                found.append((mime, content))
    plots: Any = sys.modules.get("matplotlib.pyplot")
    if plots is not None:
        for number in plots.get_fignums():
            file = io.BytesIO()
            plots.figure(number).savefig(file, format="png")
            found.append(("image/png", file.getvalue()))
        plots.close("all")
    pictures = []
    for mime, content in found:
        data = content.encode() if isinstance(content, str) else content
        max_bytes -= len(data)
        if max_bytes >= 0:
            pictures.append({"mime": mime, "base64": base64.b64encode(data).decode()})
    return pictures


if __name__ == "__main__":
    main()
