"""`millrace grade`: the service's own grading in the command's process, shown or as JSON."""

import io
import json
import shutil
import sys
from dataclasses import replace
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


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_suffix_says_the_language(given) -> None:
    from millrace_tools.grade.code_job import read_code_job

    tests = given("tests.json", SUM)
    job = read_code_job(given("a.cpp", "int main(){}"), tests)
    assert job.grader.language == "cpp17"


def test_a_language_without_its_tool_is_refused_with_what_to_install(
    given, capsys, monkeypatch
) -> None:
    from services.reward_service.languages import languages

    toolchain = replace(languages()["cpp17"].toolchain, find=lambda _: None)
    absent = replace(languages()["cpp17"], toolchain=toolchain)
    monkeypatch.setitem(languages(), "cpp17", absent)
    assert main(["grade", given("a.cpp", "int main(){}"), "--tests", given("t.json", SUM)]) == 2
    said = capsys.readouterr().err
    assert "t.json: language" in said
    assert "cpp17 needs g++, which is not here: `apt-get install g++`." in said


@pytest.mark.parametrize(
    ("name", "content", "total"),
    [
        ("check.py", "def check(candidate):\n    assert candidate(2) == 3", 1),
        ("asserts.json", ["assert f(1) == 2", "for n in (1, 2):\n    assert f(n) == n + 1"], 2),
        ("asserts.yaml", {"kind": "python_asserts", "tests": ["assert f(1) == 2"]}, 1),
    ],
)
def test_asserts_are_tests_too(given, capsys, name, content, total) -> None:
    from millrace_tools.grade.code_job import read_code_job

    if isinstance(content, str):
        content += "\n\n\ncheck(f)\n"
    job = read_code_job(given("a.py", "def f(x):\n    return x + 1"), given(name, content))
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
        ("tests.yaml", {"kind": "math", "expected": "3"}, "the nearest is maths"),
        ("tests.yaml", {"kind": "exact", "expected": 3}, "tests.yaml: expected"),
        ("tests.yaml", {"kind": "python", "name": "mine"}, "Give --deployment FILE"),
        ("tests.yaml", {"kind": "http", "name": "mine"}, "http_graders"),
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


USER = [{"role": "user", "content": "How many?"}]
CALLS = {
    "kind": "python_function",
    "entry_point": "f",
    "template": "def f(a, b):\n    {completion}",
    "tests": [{"args": [1, 2], "expected": 3}, {"args": [2, 2], "expected": 4}],
}
OWN = {"kind": "python", "name": "share", "arguments": {"letter": "a"}}
PARTS = [
    {"grader": {"kind": "exact", "expected": "4"}, "weight": 2.0},
    {"grader": OWN, "weight": 1},
]
GRADERS = {
    "call": CALLS,
    "exact": {"kind": "exact", "expected": "18"},
    "maths": {"kind": "maths", "expected": "1/2"},
    "own": OWN,
    "both": {"kind": "weighted", "parts": PARTS},
}
GRADER = """
from services.reward_service.graders.user_graders import grader


@grader("share")
def share(completion: str, letter: str) -> float:
    return completion.count(letter) / len(completion)
"""


@pytest.fixture
def tasks(given) -> str:
    """A task file with a grader of every sort, all of one split."""
    rows = [
        {"task_id": name, "split": "train", "messages": USER, "grader": grader}
        for name, grader in GRADERS.items()
    ]
    return given("tasks.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def deployment(given, tmp_path: Path, monkeypatch) -> str:
    """A Serve file whose reward service knows the user's grader."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    given("letter_share.py", GRADER)
    service = {
        "name": "reward_service",
        "import_path": "services.reward_service.app:build",
        "args": {"grader_modules": ["letter_share"]},
        "runtime_env": {"env_vars": {"PYTHONPATH": str(tmp_path)}},
    }
    return given("deploy.yaml", {"applications": [service]})


@pytest.mark.parametrize(
    ("task", "answer", "status", "reward"),
    [
        ("call", "return a + b", 0, 1.0),
        ("call", "return a", 1, 0.0),
        ("exact", "18", 0, 1.0),
        ("maths", "It is 0.5.\n\n0.5", 0, 1.0),
    ],
)
def test_an_answer_to_a_task_is_graded_as_in_a_run(
    tasks, capsys, task, answer, status, reward
) -> None:
    assert main(["grade", answer, "--task-file", tasks, "--task", task]) == status
    score = json.loads(capsys.readouterr().out)
    assert (score["job_id"], score["reward"]) == (task, reward)


def test_graders_of_the_users_own_are_those_of_the_deployment(tasks, deployment, capsys) -> None:
    asked = ["--task-file", tasks, "--deployment", deployment]
    assert main(["grade", "aaab", *asked, "--task", "own"]) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 0.75
    assert main(["grade", "4", *asked, "--task", "both"]) == 1
    assert json.loads(capsys.readouterr().out)["reward"] == 2.0


def test_a_terminal_shows_what_was_answered_and_what_was_expected(
    tasks, deployment, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(command_line, "Console", lambda: Console(force_terminal=True, width=60))
    asked = ["--task-file", tasks, "--deployment", deployment]
    assert main(["grade", "return -a", *asked, "--task", "call"]) == 1
    shown = capsys.readouterr().out
    assert "f(1, 2): wrong result -1, expected 3" in shown
    assert "wrong_answer: 0 of 2 tests passed, reward 0 (test 1: wrong result -1)" in shown
    assert main(["grade", "17", *asked, "--task", "exact"]) == 1
    assert "reward 0 (answered '17', expected '18')" in capsys.readouterr().out
    assert main(["grade", "aa", *asked, "--task", "both"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:4] == ["exact", "2", "wrong_answer", "0"]
    assert rows[2][:4] == ["python", "1", "accepted", "1"]


def test_an_answer_may_come_from_standard_input(tasks, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("18\n"))
    assert main(["grade", "-", "--task-file", tasks, "--task", "exact"]) == 0


def test_a_run_file_says_where_its_tasks_are_and_how_they_are_graded(given, capsys) -> None:
    given("sums.jsonl", json.dumps({"question": "1+1?", "answer": 2}) + "\n")
    columns = {"prompt": "question", "task_id": "answer"}
    source = {"file": "sums.jsonl", "split": "train", "columns": columns}
    source["grader"] = {"kind": "exact", "expected": "2"}
    run = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}
    file = given("run.yaml", run | {"tasks": [source]})
    assert main(["grade", "2", "--task-file", file]) == 0
    assert main(["grade", "3", "--task-file", file, "--task", "2"]) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--task", "exat"], "--task: 'exat' -> tasks.jsonl has 5 tasks"),
        (["--task", "exat"], "the nearest is exact."),
        ([], "--task: None -> tasks.jsonl has 5 tasks: call, exact, maths, own, both."),
        (["--task", "own"], "Give --deployment FILE"),
    ],
)
def test_a_task_that_cannot_be_graded_is_named(tasks, capsys, monkeypatch, asked, said) -> None:
    monkeypatch.chdir(Path(tasks).parent)
    assert main(["grade", "1", "--task-file", "tasks.jsonl", *asked]) == 2
    assert said in capsys.readouterr().err


def test_without_tests_or_a_task_file_both_are_named(given, capsys) -> None:
    assert main(["grade", given("a.py", RIGHT)]) == 2
    error = capsys.readouterr().err
    assert "--tests: None -> Give the tests" in error
    assert "--task-file" in error


DIVISOR = {
    "tests": [{"stdin": "91", "expected": ""}, {"stdin": "15", "expected": ""}],
    "checker": {
        "kind": "custom",
        "source": "def check(given, expected, got):\n    return int(given) % int(got) == 0",
    },
    "reference": "n = int(input())\nprint(next(d for d in range(2, n) if n % d == 0))",
}


def test_without_an_answer_the_reference_is_graded(given, capsys) -> None:
    assert main(["grade", "--tests", given("tests.yaml", DIVISOR)]) == 0
    score = json.loads(capsys.readouterr().out)
    assert (score["job_id"], score["reward"], score["passed"]) == ("tests.yaml", 1.0, 2)
    assert main(["grade", "--tests", given("tests.json", SUM)]) == 2
    assert "the grader has no `reference`" in capsys.readouterr().err


def test_an_author_is_told_of_a_checker_that_fails_on_the_reference(given, capsys) -> None:
    broken = {"kind": "custom", "source": DIVISOR["checker"]["source"].replace("== 0", "== O")}
    tests = given("tests.yaml", DIVISOR | {"checker": broken})
    assert main(["grade", "--tests", tests]) == 1
    score = json.loads(capsys.readouterr().out)
    assert (score["verdict"], score["reward"]) == ("infra_error", None)
    assert "with the reference answer: the checker failed on it: NameError" in score["detail"]


def test_an_answer_that_breaks_a_checker_is_wrong_and_says_how(given, capsys) -> None:
    tests = given("tests.yaml", DIVISOR)
    assert main(["grade", given("a.py", "print('seven')"), "--tests", tests]) == 1
    score = json.loads(capsys.readouterr().out)
    assert (score["verdict"], score["reward"]) == ("wrong_answer", 0.0)
    assert "the checker failed on it: ValueError" in score["detail"]


def test_a_checker_that_cannot_be_called_is_named_before_anything_runs(given, capsys) -> None:
    checker = {"kind": "custom", "source": "def check(got):\n    return True"}
    tests = given("tests.yaml", DIVISOR | {"checker": checker})
    assert main(["grade", "--tests", tests]) == 2
    assert "check must take three arguments" in capsys.readouterr().err


def test_the_references_of_a_task_file_are_graded_together(given, capsys) -> None:
    graders = {
        "right": {"kind": "code", **DIVISOR},
        "none": {"kind": "exact", "expected": "18"},
        "wrong": {"kind": "code", **DIVISOR, "reference": "print(4)"},
    }
    rows = [
        {"task_id": name, "split": "train", "messages": USER, "grader": grader}
        for name, grader in graders.items()
    ]
    tasks = given("tasks.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", "--task-file", tasks]) == 1
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["job_id"], one["verdict"]) for one in scores] == [
        ("right", "accepted"),
        ("wrong", "wrong_answer"),
    ]
    assert main(["grade", "--task-file", tasks, "--task", "right"]) == 0
    assert main(["grade", "--task-file", tasks, "--task", "none"]) == 2
    assert "has no `grader.reference` there" in capsys.readouterr().err
