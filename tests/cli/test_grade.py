"""`millrace grade`: the service's own grading in the command's process, shown or as JSON."""

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from millrace_tools import main as command_line
from millrace_tools.main import main

SUM = [{"stdin": "20 1\n", "expected": "21\n"}, {"stdin": "2 2\n", "expected": "4\n"}]
RIGHT = 'doc = """```\nnot code\n```"""\na, b = map(int, input().split())\nprint(a + b)\n'


@pytest.fixture
def given(tmp_path: Path):
    def write(name: str, content: object) -> str:
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(yaml.safe_dump(content) if name.endswith(".yaml") else text)
        return str(path)

    return write


def test_a_piped_score_is_json_and_the_status_says_whether_all_passed(given, capsys) -> None:
    tests = given("tests.json", SUM)
    assert main(["grade", given("right.py", RIGHT), "--tests", tests]) == 0
    shown = capsys.readouterr()
    assert "sandbox_started" not in shown.err
    score = json.loads(shown.out)
    assert (score["verdict"], score["reward"], score["passed"]) == ("accepted", 1.0, 2)
    assert (score["job_id"], len(score["tests"])) == ("right.py", 2)


def test_a_user_without_name_and_home_may_grade(given, capsys, monkeypatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    tests = given("tests.json", SUM)
    assert main(["grade", given("right.py", RIGHT), "--tests", tests]) == 0


def test_a_terminal_gets_a_table_with_a_row_for_each_test(given, capsys, monkeypatch) -> None:
    monkeypatch.setattr(command_line, "Console", lambda: Console(force_terminal=True, width=60))
    grader = {"entry_point": "f", "tests": [{"args": [n], "expected": 0} for n in (0, 1, 2)]}
    answer = given("answer.md", "So:\n```python\ndef f(x):\n    return 0 // (1 - x)\n```\n")
    assert main(["grade", answer, "--tests", given("tests.yaml", grader)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["1", "accepted"],
        ["2", "runtime_error"],
        ["3", "not"],
    ]
    assert lines[4].startswith("runtime_error: 1 of 3 tests passed, reward 0")


def test_a_part_of_the_reward_is_not_success(given, capsys) -> None:
    tests = given("tests.yaml", {"tests": SUM, "policy": "fraction"})
    assert main(["grade", given("half.py", "print(21)"), "--tests", tests]) == 1
    assert json.loads(capsys.readouterr().out)["reward"] == 0.5


def test_the_suffix_says_the_language(given) -> None:
    from millrace_tools.grade import read_job

    tests = given("tests.json", SUM)
    job = read_job(given("a.cpp", "int main(){}"), tests)
    assert job.grader.language == "cpp17"


@pytest.mark.parametrize(
    ("name", "content", "total"),
    [
        ("check.py", "def check(candidate):\n    assert candidate(2) == 3", 1),
        ("asserts.json", ["assert f(1) == 2", "for n in (1, 2):\n    assert f(n) == n + 1"], 2),
        ("asserts.yaml", {"kind": "python_asserts", "tests": ["assert f(1) == 2"]}, 1),
    ],
)
def test_asserts_are_tests_too(given, capsys, name, content, total) -> None:
    from millrace_tools.grade import read_job

    if isinstance(content, str):
        content += "\n\n\ncheck(f)\n"
    job = read_job(given("a.py", "def f(x):\n    return x + 1"), given(name, content))
    assert (job.grader.kind, job.grader.total) == ("python_asserts", total)


@pytest.mark.parametrize(
    ("tests", "content", "field"),
    [
        ("check.py", "def check(candidate:", "check.py"),
        ("tests.json", [{"stdin": "1", "expected": 1}], "tests.json: tests.0"),
        ("tests.json", "[", "--tests"),
        ("tests.json", 3, "tests.json: (whole document)"),
        ("tests.json", [{"args": [1], "expected": 1}], "entry_point"),
        ("tests.yaml", {"tests": SUM, "polices": "all"}, "tests.yaml: polices"),
        ("tests.yaml", {"tests": SUM, "language": "cobol"}, "tests.yaml: language"),
        ("tests.yaml", {"test_set": "0" * 64}, "tests.yaml: test_set"),
    ],
)
def test_what_cannot_be_used_is_named(given, capsys, tests, content, field) -> None:
    assert main(["grade", given("a.txt", RIGHT), "--tests", given(tests, content)]) == 2
    error = capsys.readouterr().err
    assert field in error
    assert tests in error


def test_a_file_that_is_not_there_is_named(given, capsys) -> None:
    assert main(["grade", "nothing.py", "--tests", given("tests.json", SUM)]) == 2
    assert "FILE: 'nothing.py' -> It cannot be read" in capsys.readouterr().err
    assert main(["grade", given("a.py", RIGHT), "--tests", "no.json"]) == 2
    assert "no.json" in capsys.readouterr().err
