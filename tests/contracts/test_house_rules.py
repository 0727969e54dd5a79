"""The rules of the house, checked by the tools that hold them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PACKAGES = ("services", "environments", "millrace_tools")
SERVICES = sorted(path for one in PACKAGES for path in (ROOT / one).rglob("*.py"))


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "."],
        ["ruff", "check", "."],
        ["mypy"],
        ["lint-imports"],
    ],
    ids=lambda command: " ".join(command),
)
def test_the_linters_have_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ray_serve_is_imported_only_by_apps_and_peers() -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in SERVICES
        for module in _imported_modules(path)
        if module == "ray.serve" or module.startswith("ray.serve.")
    }
    command = {"millrace_tools/deploy/deployment.py", "millrace_tools/capacity/serve_demands.py"}
    allowed = {"services/peers.py"} | command
    assert {path for path in importers if not path.endswith("/app.py")} <= allowed


def test_no_file_is_longer_than_400_lines_and_no_function_longer_than_60() -> None:
    long = []
    for path in SERVICES:
        text = path.read_text()
        if text.count("\n") > 400:
            long.append(f"{path}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long.append(f"{path}:{node.lineno} {node.name}: {lines} lines")
    assert not long


def test_no_folder_has_more_than_15_modules_side_by_side() -> None:
    beside: dict[Path, int] = {}
    for path in SERVICES:
        beside[path.parent] = beside.get(path.parent, 0) + (path.name != "__init__.py")
    assert {folder: count for folder, count in beside.items() if count > 15} == {}


def test_nothing_takes_more_than_six_parameters() -> None:
    # What attention and torch's autograd are called with is not ours to choose.
    allowed = {"packed_attention", "forward"}
    wide = []
    for path in SERVICES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                names += [one.arg for one in (given.vararg, given.kwarg) if one]
                taken = len(names) - (names[:1] in (["self"], ["cls"]))
                if taken > 6 and node.name not in allowed:
                    wide.append(f"{path}:{node.lineno} {node.name}: {taken} parameters")
    assert not wide


def test_only_the_group_book_changes_what_becomes_of_a_sample_group() -> None:
    both = ("admit", "restart", "rolled_out")
    changes = {
        "ledger": (*both, "keep_result", "retry", "close_group", "close_batch", "rollback"),
        "schedule": (*both, "sampled", "ready", "refill", "close", "select", "published", "live",
                     "lost", "went_back"),
    }  # fmt: skip
    calls = set()
    for path in (ROOT / "services" / "orchestrator").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value).rpartition(".")[2].strip("_")
                if node.func.attr in changes.get(owner, ()):
                    calls.add(path.name)
    assert calls == {"book.py"}


def test_words_that_were_given_up_do_not_come_back() -> None:
    page = ROOT / "docs" / "style.md"
    rows = re.findall(r"^\| (`.*?) \|", page.read_text(encoding="utf-8"), re.M)
    words = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert len(words) > 10
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\n") if name.endswith((".py", ".md", ".yaml", ".yml"))]
    history = {"CHANGELOG.md", "docs/style.md"}
    found = {
        f"{name}: {word}"
        for name in names
        if name not in history and (ROOT / name).exists()
        for word in re.findall(r"\w+", (ROOT / name).read_text(encoding="utf-8"))
        if word in words
    }
    assert not found


def test_make_help_lists_every_command() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in said.stdout.splitlines()}
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    (parts,) = re.findall(r"^PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert listed == set(phony.split()) - set(parts.split())


def test_importing_the_router_loads_neither_torch_nor_an_engine() -> None:
    check = (
        "import sys, services.router.app; "
        "print([m for m in ('torch', 'vllm', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


def test_no_call_to_a_service_goes_to_a_proxy_of_the_environment() -> None:
    """httpx and openai ask one unless they are told not to; aiohttp only if it is told to."""
    clients = ("httpx.Client", "httpx.AsyncClient", "httpx.get", "httpx.post", "httpx.stream")
    openai = ("openai.OpenAI", "openai.AsyncOpenAI")
    found, astray = 0, []
    for path in SERVICES:
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func)
            given = {one.arg: ast.unparse(one.value) for one in call.keywords}
            wanted = name in clients or name.endswith("HttpxClient")
            found += wanted or name in openai
            if wanted and given.get("trust_env") != "False":
                astray.append(f"{path}:{call.lineno} {name}")
            if (name in openai and "http_client" not in given) or given.get("trust_env") == "True":
                astray.append(f"{path}:{call.lineno} {name}")
    assert found > 5
    assert not astray


def _imported_modules(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found
