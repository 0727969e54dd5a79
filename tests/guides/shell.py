"""What a command of a guide must be: one that the real program would accept."""

import contextlib
import importlib.util
import io
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click
from ray.scripts.scripts import cli as ray_cli
from ray.serve.scripts import cli as serve_cli

from docs.site.reference import pages
from millrace_tools.main import command_parser

ROOT = Path(__file__).parents[2]
TREE = ("benchmarks/", "deploy/", "docs/", "examples/", "services/", "tests/")
PLAIN = {
    *("source", "export", "cd", "cp", "mkdir", "head", "tail", "grep", "sleep", "kill", "printf"),
    *("git", "ssh"),
}
"""Programs of every shell, whose arguments need no check beyond the files that they name."""


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that its program would refuse, or that names a file which is not there.

    Raises:
        AssertionError: saying why.
        click.ClickException: Ray or Serve would refuse it.
    """
    program = Path(words[0]).name
    check = _CHECKS.get(program)
    assert check or program in PLAIN, f"say in {Path(__file__).name} how to check {program}"
    for word in words[1:]:
        if word.startswith(TREE) and not _is_made(word):
            assert any(ROOT.glob(word)), f"{word} does not exist"
    if check:
        check(list(words[1:]))


def _is_made(path: str) -> bool:
    """A file that an example's own commands write."""
    return "tasks.jsonl" in path or "/runs/" in path


def _millrace(arguments: list[str]) -> None:
    said, refused = io.StringIO(), False
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            command_parser().parse_args(arguments)
    except SystemExit as ended:
        refused = ended.code != 0  # --help and --version end it too
    assert not refused, said.getvalue()


def _python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        package = ROOT / arguments[1].replace(".", "/")
        spec = importlib.util.find_spec(arguments[1] + (".__main__" if package.is_dir() else ""))
        assert spec is not None, f"no module {arguments[1]}"
        own, source = (
            arguments[1].startswith(("services", "millrace_tools", "examples", "benchmarks")),
            spec.origin,
        )
    else:
        own, source = True, str(ROOT / arguments[0])
    if own and source:
        text = Path(source).read_text(encoding="utf-8")
        for option in (word for word in arguments if word.startswith("--")):
            keyword = option.removeprefix("--").replace("-", "_")  # `options_of` of benchmarks
            known = f'"{option}"' in text or re.search(rf"\b{keyword}=", text)
            assert known, f"{source} knows no {option}"


def _make(arguments: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for word in arguments:
        assert word in targets or "=" in word or word.startswith("."), f"no target {word}"


def _clicked(group: click.Group) -> Callable[[list[str]], None]:
    def check(arguments: list[str]) -> None:
        command: click.Command = group
        while isinstance(command, click.Group):
            name, *arguments = arguments
            assert name in command.commands, f"no command {name}"
            command = command.commands[name]
        with contextlib.suppress(click.exceptions.Exit):  # --help and --version
            command.make_context(command.name, arguments)

    return check


def _pip(arguments: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = extras["optional-dependencies"]
    for wanted in re.findall(r"millrace\[([\w,]+)\]", " ".join(arguments)):
        assert set(wanted.split(",")) <= set(known), f"extras: {wanted}"


def _pytest(arguments: list[str]) -> None:
    options = (ROOT / "tests" / "fuzz" / "conftest.py").read_text(encoding="utf-8")
    for option in (word for word in arguments if word.startswith("--")):
        assert f'"{option}"' in options, f"tests/fuzz/conftest.py knows no {option}"


def _curl(arguments: list[str]) -> None:
    (url,) = (word for word in arguments if word.startswith(("http://", "https://")))
    path = urlsplit(url).path
    shown = {re.sub(r"\{\w+\}", "[^/]+", one.replace("{path}", ".+")) for one in _paths()}
    assert path == "/metrics" or any(re.fullmatch(one, path) for one in shown), f"no path {path}"
    for option, value in itertools.pairwise(arguments):
        if option in ("-d", "--data", "--json") and "PUT" not in arguments:
            json.loads(value)


def _paths() -> list[str]:
    return re.findall(r"^### [A-Z]+ (\S+)$", pages()["reference/http.md"], re.M)


_CHECKS: dict[str, Callable[[list[str]], None]] = {
    "millrace": _millrace,
    "python": _python,
    "make": _make,
    "ray": _clicked(ray_cli),
    "serve": _clicked(serve_cli),
    "pip": _pip,
    "uv": _pip,
    "pytest": _pytest,
    "curl": _curl,
}
