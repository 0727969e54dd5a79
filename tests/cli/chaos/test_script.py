"""A script of faults says what is wrong with it before anything is hit."""

from pathlib import Path

import pytest

from millrace_tools.chaos.script import Fault, Script, Target
from services.protocol.errors import InvalidInput


def read(tmp_path: Path, *lines: str) -> Script:
    file = tmp_path / "script.yaml"
    file.write_text("faults:\n" + "".join(f"  - {{{line}}}\n" for line in lines))
    return Script.from_yaml(file)


def test_a_script_is_played_in_the_order_of_its_times(tmp_path: Path) -> None:
    script = read(
        tmp_path,
        "at: 9, fault: freeze, target: rank, for: 3, which: 1",
        "at: 2, fault: kill, target: replica",
    )
    first, second = script.in_order
    assert (first.fault, first.target, first.seconds) == (Fault.KILL, Target.REPLICA, None)
    assert (second.at, second.seconds, second.which) == (9.0, 3.0, 1)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("at: 1, fault: freeze, target: rank", "needs `for`"),
        ("at: 1, fault: kill, target: rank, for: 3", "has no end"),
        ("at: 1, fault: kill, target: database", "target"),
        ("at: 1, fault: kill, target: rank, wich: 0", "wich"),
        ("at: -1, fault: kill, target: rank", "at"),
    ],
)
def test_a_line_that_cannot_be_played_is_named(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, line)
    assert told in f"{refused.value.field} {refused.value.fix}"
