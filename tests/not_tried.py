"""Says at the end of a run what could not be tried here, and why: a count by reason.

Every reason for a skip is on the list below. A new one fails its test until it is added here, so
that leaving something untried on some machines is decided and not slipped in.
"""

import re
from collections import Counter
from collections.abc import Generator, Iterable

import pytest

ALLOWED = (
    # Tools that a machine may lack.
    r"tier A needs bubblewrap, which is not installed",
    r"tier A is not to be had here: .*",
    r"needs (g\+\+|cc)",
    r"\w+ needs [\w+]+, which is not here: .*",
    r"needs \w+ where all users may enter",
    r"g\+\+ is not installed",
    r"(gcc|perl) is not installed",
    r"curl is not installed",
    r"there is no C preprocessor",
    r"the kernel's headers are not installed",
    r"the headers are another machine's",
    r"needs /usr/bin/python3",
    r"no mount",
    r"no promtool: apt-get install prometheus",
    r"no prometheus: apt-get install prometheus",
    r"needs libfaketime: apt-get install faketime",
    r"no libfaketime: apt-get install faketime",
    r"needs chromium: apt-get install --no-install-recommends chromium",
    # Packages of extras.
    r"could not import '(datasets|pyarrow|pyarrow\.parquet|torchao|verifiers|openenv|harbor)': .*",
    r"needs verifiers (before 0\.4|0\.3 or later)",
    r"no published templates: pip install trl",
    r"pip install 'millrace\[trackers\]'",
    # What an ordinary user, a container or another system may not do.
    r"only root can become nobody",
    r"an ordinary user's processes are counted together",
    r"an ordinary user's other processes look like a workspace's",
    r"only root can give files away",
    r"only who may mount has a disk to fill: .*",
    r"mounting a tmpfs needs root",
    r"a file system cannot be mounted, run as root: .*",
    r"needs root, and iptables: apt-get install iptables",
    r"no namespaces here[,:] .*",
    r"network namespaces need root: run it as root",
    r"there is no `\w+`: apt-get install .*",
    r"no containers here: .*",
    r"no /dev/shm",
    r"needs a CUDA device",
    r"not a clone, so nobody can say which files belong to it",
    # What takes long and is asked for.
    r"takes seconds; --all-attacks",
    r"only with --all-problems",
)
_ALLOWED = re.compile("|".join(ALLOWED), re.DOTALL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _allowed_or_failed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _allowed_or_failed(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    for line in lines(reason_of(report) for report in skipped):
        terminalreporter.write_line(line)


def lines(reasons: Iterable[str]) -> list[str]:
    """One for each reason, most frequent first; none where there is none."""
    counts = Counter(reasons).most_common()
    head = [f"Not tried here: {sum(count for _, count in counts)}"] if counts else []
    return head + [f"{count:6}  {reason}" for reason, count in counts]


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """In the words of the one that skipped."""
    assert isinstance(report.longrepr, tuple)
    return report.longrepr[2].removeprefix("Skipped: ")


def _allowed_or_failed(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = reason_of(report)
    if _ALLOWED.fullmatch(reason) is None:
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that is not in {__file__}: {reason}"
