"""Runs the tests of adapters with several versions of the real packages, and writes the table.

    python -m tests.adapters.versions [--only NAME ...] [--keep FOLDER] [--record]

Each version is installed, with Millrace as `pip install millrace` installs it, into an environment
of its own (uv). A test that is skipped there has not been tried, and counts as failed. `--record`
writes record.json and the table of docs/environments.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.report import markdown, with_table
from tests.clients.python_environment import python_with

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "record.json"
PAGE = ROOT / "docs" / "environments.md"
TESTS_S = 900.0
VERSIONS = {
    "gymnasium": ("1.4.0", "1.2.3", "1.0.0"),
    "openenv-core": ("0.3.0", "0.2.3", "0.2.2"),
    "verifiers": ("0.4.0", "0.3.1", "0.3.0", "0.2.1", "0.2.0", "0.1.14", "0.1.12", "0.1.11"),
    "mcp": ("2.3.0",),
    "harbor": ("0.26.0", "0.20.0", "0.13.0"),
}
"""Of each package that has an adapter, those that are tried; the newest first."""
FILES = {
    "gymnasium": ("gymnasium",),
    "openenv-core": ("openenv",),
    "verifiers": ("verifiers",),
    "verifiers 0.4.0": ("verifiers_tasksets",),
    "verifiers 0.3.1": ("verifiers", "verifiers_tasksets"),
    "verifiers 0.3.0": ("verifiers", "verifiers_tasksets"),
    "mcp": ("mcp",),
    "harbor": ("harbor",),
}
"""The tests of each package, or of a version that has others."""
PYTHON = {"harbor": "3.12"}
"""The Python of a package that cannot do with the one that runs this."""
_FOR_TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")


@dataclass(frozen=True)
class Result:
    """How the tests of an adapter ended with one version.

    Attributes:
        passed: how many did.
        failed: the names of the others.
    """

    passed: int
    failed: list[str]


def names() -> list[str]:
    """Of all packages with their versions."""
    return [f"{package} {one}" for package, several in VERSIONS.items() for one in several]


def run(name: str, folder: Path) -> Result:
    """Install a package in one version, and run the tests of its adapter."""
    package, version = name.split()
    needs = ("--editable", str(ROOT), f"{package}=={version}", *_FOR_TESTS)
    home = folder / name.replace(" ", "-")
    python = python_with(needs, home, PYTHON.get(package, sys.executable))
    with tempfile.TemporaryDirectory(prefix="adapters-") as temporary:
        results = Path(temporary) / "results.xml"
        tests = [f"tests/adapters/test_{one}.py" for one in FILES.get(name, FILES[package])]
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            [*command, f"--junitxml={results}", f"--basetemp={temporary}/tests"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TESTS_S,
            check=False,
        )
        result = _read(results) if results.exists() else Result(0, ["none ran"])
    if result.failed:
        print(done.stdout[-6000:], done.stderr[-3000:], file=sys.stderr)
    return result


def _read(results: Path) -> Result:
    """From a file in the format of JUnit."""
    cases = ElementTree.parse(results).iter("testcase")
    bad = {one.get("name") or "": any(child.tag != "properties" for child in one) for one in cases}
    return Result(
        sum(not one for one in bad.values()), [name for name, is_bad in bad.items() if is_bad]
    )


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of docs/environments.md."""
    lines = [["package", "version", "tests that passed", "tests that failed"]]
    lines += [
        [*name.split(), str(row["passed"]), str(len(row["failed"]))] for name, row in rows.items()
    ]
    return markdown(lines)


def shown(page: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the table of these rows."""
    return with_table(page, "adapters", "\n" + table(rows))


def main() -> int:
    """Install and run all, and say what failed."""
    parser = argparse.ArgumentParser(description="Run the tests of adapters with real packages.")
    says = "such as 'openenv-core 0.3.0'; also versions that are not in the table"
    parser.add_argument("--only", nargs="+", default=names(), help=says)
    parser.add_argument("--keep", type=Path, help="folder of the environments, to use them again")
    parser.add_argument("--record", action="store_true", help="write record.json and the page")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="adapters-") as temporary:
        for name in options.only:
            rows[name] = asdict(run(name, options.keep or Path(temporary)))
            print(f"{name}: {rows[name]}", flush=True)
    failed = any(row["failed"] for row in rows.values())
    if options.record:
        known = {**json.loads(RECORD.read_text()), **rows} if RECORD.exists() else rows
        rows = {name: known[name] for name in names() if name in known}
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(shown(PAGE.read_text(), rows))
    print(table(rows))
    return failed


if __name__ == "__main__":
    sys.exit(main())
