"""Audits eight environments, four of them with a planted defect, and writes the table of findings.

    python -m tests.audit.eight [--only NAME ...] [--record]

`--record` writes eight.json from the reports, and the table of docs/audit.md.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import markdown, with_table
from tests.audit.test_audit import LEAKED, ROWS, audit_of, run_file
from tests.audit.test_examples import EXAMPLES, copy_example

HERE = Path(__file__).parent
RECORD = HERE / "eight.json"
PAGE = HERE.parents[1] / "docs" / "audit.md"


@dataclass(frozen=True)
class Audited:
    """One environment.

    Attributes:
        write: makes its run file in a folder, and returns what `millrace audit` is asked about
            in place of that file, if not itself.
        defect: what is planted, empty if nothing is.
        check: the one that must fail because of it.
        options: of its audit.
    """

    write: Callable[[Path], str | None]
    defect: str = ""
    check: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def _example(number: int) -> Audited:
    return Audited(lambda folder: copy_example(folder, *EXAMPLES[number]))


def _planted(environment: str, defect: str, check: str, rows: list[dict[str, Any]]) -> Audited:
    return Audited(lambda folder: run_file(folder, environment, rows), defect, check)


EIGHT = {
    "examples/shop": _example(0),
    "examples/arithmetic, an agent": _example(2),
    "examples/tiny_code": _example(3),
    "gymnasium's FrozenLake-v1": Audited(
        lambda folder: "FrozenLake-v1", options={"arguments": '{"max_turns": 4}'}
    ),
    "`pays_silence`": _planted("pays_silence", "pays the empty answer", "reward.worthless", ROWS),
    "`leaks`": _planted("leaks", "has the answer in its prompt", "reward.leak", LEAKED),
    "`too_busy_is_wrong`": _planted(
        "too_busy_is_wrong", "a grader that times out pays 0", "reward.load", ROWS
    ),
    "`by_order`": _planted(
        "by_order", "rewards depend on the order of episodes", "reward.reproducible", ROWS
    ),
}


def audit(name: str) -> dict[str, Any]:
    """What the report of this environment says."""
    one = EIGHT[name]
    with tempfile.TemporaryDirectory(prefix="eight-") as temporary:
        folder = Path(temporary)
        asked = one.write(folder) or ""
        options = {"tasks": 8, "episodes": 40, "timeout": 600, **one.options}
        status, found, said = audit_of(folder, asked, **options)
    if not found:
        raise RuntimeError(f"{name}: {status}: {said}")
    failed = {
        check: finding["evidence"].replace(temporary, "FOLDER")
        for check, finding in found.items()
        if finding["verdict"] == "fail"
    }
    verdicts = Counter(finding["verdict"] for finding in found.values())
    return {"defect": one.defect, "verdicts": dict(sorted(verdicts.items())), "failed": failed}


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of docs/audit.md."""
    lines = [["environment", "planted defect", "pass", "warn", "fail", "found by"]]
    for name, row in rows.items():
        check = EIGHT[name].check
        counts = [str(row["verdicts"].get(one, 0)) for one in ("pass", "warn", "fail")]
        found = f"`{check}`: {row['failed'].get(check, 'not found')}" if check else ""
        lines.append([name, row["defect"] or "none", *counts, found])
    return markdown(lines)


def shown(page: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the table of these rows."""
    return with_table(page, "audits", "\n" + table(rows))


def main() -> int:
    """Audit all, and say what was found."""
    parser = argparse.ArgumentParser(description="Audit eight environments.")
    parser.add_argument("--only", nargs="+", choices=EIGHT, default=list(EIGHT))
    parser.add_argument("--record", action="store_true", help="write eight.json and the page")
    options = parser.parse_args()
    rows = {}
    for name in options.only:
        rows[name] = audit(name)
        print(f"{name}: {rows[name]}", flush=True)
    if options.record:
        known = {**json.loads(RECORD.read_text()), **rows} if RECORD.exists() else rows
        rows = {name: known[name] for name in EIGHT if name in known}
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(shown(PAGE.read_text(), rows))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
