"""Ctrl-C ends a command with status 130, wherever it was."""

import subprocess
import sys

import pytest

CODE = """
import sys
from types import SimpleNamespace
from millrace_tools import main
def function(arguments, console):
    {}
parsed = SimpleNamespace(parse_args=lambda argv: SimpleNamespace(function=function))
main.command_parser = lambda: parsed
sys.exit(main.main())
"""


@pytest.mark.parametrize("line", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_it_ends_with_a_status_and_not_by_the_signal(line: str) -> None:
    ended = subprocess.run([sys.executable, "-c", CODE.format(line)], timeout=300, check=False)
    assert ended.returncode == 130
