"""One part of `make test`: pytest with a temporary folder of its own and a report in build/test.

    python -m tests.part NAME [pytest's arguments]

The folder is looked into when pytest has ended with all that it does at its end: a file that is
left behind fails the part.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

REPORTS = Path("build/test")
CACHES = ("torchinductor_*",)
"""What torch keeps there on purpose, for the next process."""

_LAST_LINES = 60
"""Of what a pytest that crashed said."""


def main(name: str, *arguments: str) -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    outer = tempfile.gettempdir()
    # A short name: a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="mt-"))
    folder.chmod(0o1777)  # as the one around it: some tests are another user
    # Those of failed tests stay where pytest always keeps them.
    environment = {**os.environ, "TMPDIR": str(folder), "PYTEST_DEBUG_TEMPROOT": outer}
    # pytest turns its own faulthandler off before the process ends.
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest"]
    command += [f"--junit-xml={report}", *arguments]
    errors = REPORTS / f"{name}.stderr"
    try:
        with errors.open("w") as stderr:
            status = subprocess.run(command, env=environment, stderr=stderr).returncode
        left = left_in(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = errors.read_text(errors="replace")
    print(said, end="", file=sys.stderr)
    if left:
        add_failure(report, "left in the temporary folder", "\n".join(left))
        print(f"\nleft in the temporary folder by {name}:", *left, sep="\n  ")
    if status not in (0, 1) or not report.exists():
        last = "\n".join(said.splitlines()[-_LAST_LINES:])
        add_failure(report, "pytest", f"ended with status {status}\n{last}")
    return status or bool(left)


def left_in(folder: Path) -> list[str]:
    """Names of what is there and is no cache."""
    left = (path for path in folder.iterdir() if not any(path.match(cache) for cache in CACHES))
    return sorted(path.name for path in left)


def add_failure(report: Path, name: str, message: str) -> None:
    """Write one more failed test into the report, or a report of it alone."""
    if report.exists():
        root = ElementTree.parse(report).getroot()
    else:
        root = ElementTree.Element("testsuites")
        ElementTree.SubElement(root, "testsuite", time="0")
    case = ElementTree.SubElement(root[0], "testcase", classname=report.stem, name=name)
    ElementTree.SubElement(case, "failure", message=message)
    ElementTree.ElementTree(root).write(report)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
