"""The last lines of `make test`: for each part and for all of them, what passed and what did not.

python -m tests.closing SECONDS_SINCE_EPOCH_AT_THE_START PART...
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from tests.not_tried import lines
from tests.part import REPORTS


@dataclass(frozen=True, kw_only=True)
class Part:
    """How one part ended.

    Attributes:
        passed: number of tests.
        failed: names of those that failed or could not begin.
        not_tried: why, of each that was skipped.
        seconds: how long it took.
    """

    passed: int
    failed: list[str]
    not_tried: list[str]
    seconds: float


def read(report: Path) -> Part:
    """A part's report; one that is missing is a failure."""
    if not report.exists():
        return Part(passed=0, failed=[f"{report.stem}: no report"], not_tried=[], seconds=0.0)
    (suite,) = ElementTree.parse(report).getroot()
    failed, not_tried, passed = [], [], 0
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}{_why(case, report)}")
        elif (skipped := case.find("skipped")) is not None:
            not_tried.append(skipped.get("message", ""))
        else:
            passed += 1
    seconds = float(suite.get("time", 0))
    return Part(passed=passed, failed=failed, not_tried=not_tried, seconds=seconds)


def _why(case: Element, report: Path) -> str:
    """What failed around the tests, for which pytest has printed nothing."""
    failure = case.find("failure")
    is_around = failure is not None and case.get("classname") == report.stem
    return f": {failure.get('message')}" if failure is not None and is_around else ""


def closing(parts: dict[str, Part], seconds: float) -> list[str]:
    """The lines; the last one says it all."""
    told = []
    for name, part in parts.items():
        told += ["", f"{name}: {_counts(part)} in {_words(part.seconds)}"]
        told += [f"FAILED {test}" for test in part.failed]
    whole = Part(
        passed=sum(part.passed for part in parts.values()),
        failed=[test for part in parts.values() for test in part.failed],
        not_tried=[reason for part in parts.values() for reason in part.not_tried],
        seconds=seconds,
    )
    told += ["", *lines(whole.not_tried)]
    return [*told, f"make test: {_counts(whole)}, in {_words(seconds)}"]


def _counts(part: Part) -> str:
    counts = f"{part.passed} passed, {len(part.failed)} failed"
    return f"{counts}, {len(part.not_tried)} not tried"


def _words(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def main(began: str, *names: str) -> int:
    parts = {name: read(REPORTS / f"{name}.xml") for name in names}
    print(*closing(parts, time.time() - float(began)), sep="\n")
    return any(part.failed for part in parts.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
