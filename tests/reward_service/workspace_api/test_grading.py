"""Workspaces graded: what earns a reward, what earns none, and what is nobody's fault."""

import os
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.grader import WeightedGrader
from services.protocol.reward.workspace_tests import GradeWorkspace, ProgramTest
from services.protocol.reward.workspaces import CallResult
from services.reward_service.workspace_api.grading import Grading, of_a_file
from services.reward_service.workspace_api.trial_run import judged
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import WorkspaceFault
from services.reward_service.workspaces.running import programs
from tests.reward_service.workspace_api.conftest import FakeReward, Replica, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUMS = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
GOOD = {"argv": ["python3", "sums.py"], "stdin": "1 2", "expected": "3"}
OTHER = {**GOOD, "stdin": "4 5", "expected": "9"}


async def graded(replica: Replica, workspace: str, /, **how: Any) -> dict[str, Any]:
    answer = await replica.http.post(f"{workspace}/grade", json=how)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def score_of(replica: Replica, files: dict[str, str], /, **how: Any) -> dict[str, Any]:
    workspace = await opened(replica.http, files=files)
    score = await graded(replica, workspace, **how)
    await replica.http.delete(workspace)
    return score


async def test_a_right_program_is_accepted_and_its_workspace_closed(replica: Replica) -> None:
    path = await opened(replica.http, files={"sums.py": SUMS})
    score = await graded(replica, path, tests=[GOOD, OTHER])
    assert (score["verdict"], score["reward"], score["passed"]) == ("accepted", 1.0, 2)
    assert [one["verdict"] for one in score["tests"]] == ["accepted", "accepted"]
    assert (score["tier"], score["job_id"]) == ("B", path.rpartition("/")[2])
    assert (await replica.http.get(path)).status_code == 410


async def test_a_workspace_stays_open_where_that_is_asked_for(replica: Replica) -> None:
    path = await opened(replica.http, files={"sums.py": SUMS})
    wrong = await graded(replica, path, tests=[{**GOOD, "expected": "4"}], close=False)
    assert (wrong["verdict"], wrong["reward"]) == ("wrong_answer", 0.0)
    assert "4" not in wrong["detail"], "no expected output is told"
    assert (await graded(replica, path, tests=[GOOD]))["reward"] == 1.0


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("import os\nos._exit(0)", "wrong_answer"),
        ("raise SystemExit(3)", "runtime_error"),
        ("while True: pass", "time_limit"),
        ("import time\ntime.sleep(600)", "time_limit"),
        ("print('x' * (1 << 20))", "output_limit"),
        ("x = bytearray(1 << 30)", "memory_limit"),
        ("open('big', 'wb').write(b'x' * (1 << 26))", "runtime_error"),
        ("import os, signal\nos.kill(-1, signal.SIGKILL)", "wrong_answer"),
    ],
)
async def test_a_wrong_or_hostile_program_earns_a_named_zero(
    replica: Replica, source: str, verdict: str
) -> None:
    wall_s = 5.0 if "sleep" in source else 120.0  # others end by themselves or by another limit
    test = {**GOOD, "wall_s": wall_s, "cpu_s": 1.0, "output_kb": 16}
    path = await opened(replica.http, files={"sums.py": source}, disk_mb=16, memory_mb=256)
    score = await graded(replica, path, tests=[test])
    assert (score["verdict"], score["reward"]) == (verdict, 0.0), score["detail"]


async def test_tests_come_only_now_and_cannot_be_changed(replica: Replica) -> None:
    """The workspace's code finds no test before it is graded, and then changes none."""
    # Landlock does not govern modes: what shares the service's user may change them.
    change_mode = "os.chmod(base + '/check.sh', 0o777)" if os.geteuid() == 0 else "os.unlink(base)"
    planted = (
        "import os, sys\n"
        "for base in (os.environ['TESTS'], '/tests'):\n"
        "    for name in ('check.sh', 'new'):\n"
        "        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT):\n"
        "            try: os.close(os.open(base + '/' + name, flags, 0o755)); print('changed')\n"
        "            except OSError: pass\n"
        "    for change in (lambda: os.unlink(base + '/check.sh'),\n"
        f"                   lambda: {change_mode},\n"
        "                   lambda: os.rename(base + '/check.sh', base + '/x')):\n"
        "        try: change(); print('changed')\n"
        "        except OSError: pass\n"
        "print(open(os.environ['TESTS'] + '/deep/data.txt').read())\n"
    )
    path = await opened(replica.http, files={"main.py": planted})
    before = await replica.http.post(f"{path}/exec", json={"shell": "echo [$TESTS]; ls /tests"})
    assert before.json()["stdout"] == "[]\n"
    files = {"check.sh": "#!/bin/sh\nexec python3 main.py\n", "deep/data.txt": "hidden"}
    by_argv = {"argv": ["{tests}/check.sh"], "expected": "hidden"}
    by_shell = {"shell": '"$TESTS/check.sh"', "expected": "hidden"}
    score = await graded(replica, path, tests=[by_argv, by_shell], files=files)
    assert score["verdict"] == "accepted", score
    assert not [one for one in os.listdir(replica.workspaces._scratch.path) if "tests-" in one]


async def test_no_test_sees_what_another_one_did(replica: Replica) -> None:
    counting = "import os\nprint(os.path.exists('seen'))\nopen('seen', 'w').close()"
    alone = {"argv": ["python3", "main.py"], "expected": "False"}
    score = await score_of(replica, {"main.py": counting}, tests=[alone] * 3, policy="fraction")
    assert score["passed"] == 3


async def test_a_workspace_that_ran_many_cells_is_graded_all_the_same(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_MAX_CELLS_BYTES", 0)
    path = await opened(replica.http, files={"sums.py": SUMS})
    ran = await replica.http.post(f"{path}/python", json={"code": "x = 1"})
    assert ran.json()["status"] == "ok"
    assert (await graded(replica, path, tests=[GOOD]))["verdict"] == "accepted"


async def test_nothing_that_a_program_left_running_is_in_the_copy(replica: Replica) -> None:
    path = await opened(replica.http, files={"sums.py": "print('wrong')"})
    code = (
        "import threading, time\n"
        "def swap():\n"
        "    while True: open('sums.py', 'w').write('print(3)'); time.sleep(0.01)\n"
        "threading.Thread(target=swap, daemon=True).start()"
    )
    await replica.http.post(f"{path}/python", json={"code": code})
    await replica.http.put(f"{path}/files/sums.py", content=b"print('wrong')")
    assert (await graded(replica, path, tests=[GOOD]))["verdict"] == "wrong_answer"


async def test_a_module_planted_in_the_home_folder_is_not_imported(replica: Replica) -> None:
    place = "import sys; print('.local/lib/python%d.%d/site-packages' % sys.version_info[:2])"
    path = await opened(replica.http, files={"sums.py": SUMS})
    found = await replica.http.post(f"{path}/exec", json={"argv": ["python3", "-c", place]})
    for name in ("usercustomize.py", "sitecustomize.py"):
        target = f"{path}/files/{found.json()['stdout'].strip()}/{name}"
        put = await replica.http.put(target, content=b"print('forged', flush=True)")
        assert put.status_code == 200
    honest = {"argv": ["python3", "{tests}/t.py"], "expected": "ok"}
    score = await graded(replica, path, tests=[honest], files={"t.py": "print('ok')"})
    assert score["verdict"] == "accepted", score["tests"]


async def test_policies_and_checkers_are_those_of_code(replica: Replica) -> None:
    tests = [
        {
            **GOOD,
            "expected": "3.0000000001",
            "checker": {"kind": "float"},
            "weight": 3,
            "group": "a",
        },
        {**GOOD, "expected": "4", "also": ["3"], "weight": 1, "group": "b"},
        {**OTHER, "expected": "8", "weight": 4, "group": "c"},
    ]
    score = await score_of(replica, {"sums.py": SUMS}, tests=tests, policy="grouped")
    assert (score["reward"], score["first_failure"], score["run"]) == (0.5, 2, 3)
    wrong_first = [tests[2], tests[0], tests[1]]
    score = await score_of(replica, {"sums.py": SUMS}, tests=wrong_first)
    assert (score["reward"], score["run"]) == (0.0, 1)


async def test_a_file_is_graded_by_a_grader_of_the_reward_service(replica: Replica) -> None:
    replica.reward.right = "42\n```\nnot code\n```\n"
    grader = {"kind": "exact", "expected": "42"}
    files = {"out/answer.txt": replica.reward.right}
    score = await score_of(replica, files, grader=grader, path="out/answer.txt")
    assert (score["verdict"], score["reward"]) == ("accepted", 1.0)
    code = {"kind": "python_stdio", "tests": [{"stdin": "", "expected": ""}]}
    await score_of(replica, files, grader=code, path="out/answer.txt")
    assert replica.reward.jobs[-1].grader.template == "{completion}", "the whole file is the code"
    missing = await score_of(replica, files, grader=grader, path="answer.txt")
    assert (missing["verdict"], missing["reward"]) == ("no_code", 0.0)


async def test_a_reward_service_that_is_away_leaves_the_workspace_ungraded_and_open(
    replica: Replica,
) -> None:
    path = await opened(replica.http, files={"a": "1"})
    replica.reward.away = True
    try:
        score = await graded(replica, path, grader={"kind": "exact", "expected": "1"}, path="a")
    finally:
        replica.reward.away = False
    assert (score["verdict"], score["reward"]) == ("infra_error", None)
    assert (await replica.http.delete(path)).status_code == 200, "it can be graded again"


@pytest.mark.parametrize("fault", [WorkspaceFault("no jail"), OSError(28, "No space left")])
async def test_what_no_program_did_is_never_a_reward(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(replica.workspaces, "open_copy", fail)
    score = await score_of(replica, {"sums.py": SUMS}, tests=[GOOD])
    assert (score["verdict"], score["reward"], score["total"]) == ("infra_error", None, 1)


async def test_a_jail_that_dies_twice_is_a_crash_and_once_is_run_again(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, deaths = replica.workspaces.open_copy, 1

    async def dying(*args: Any, **options: Any) -> Any:
        nonlocal deaths
        copy = await honest(*args, **options)
        if deaths:
            deaths -= 1
            copy.jail.kill()
        return copy

    monkeypatch.setattr(replica.workspaces, "open_copy", dying)
    assert (await score_of(replica, {"sums.py": SUMS}, tests=[GOOD]))["verdict"] == "accepted"
    deaths = 2
    score = await score_of(replica, {"sums.py": SUMS}, tests=[GOOD])
    assert (score["verdict"], score["reward"]) == ("crashed_sandbox", 0.0)


async def test_sleepers_use_up_their_own_time_and_no_more(replica: Replica) -> None:
    """`grade_run_s` is 2.5 s here: the tests that are left count as failed."""
    how = GradeWorkspace(
        tests=[ProgramTest(argv=["sleep", "60"], expected="", wall_s=1.0)] * 40, policy="fraction"
    )
    config = WorkspacesConfig(grade_run_s=2.5)
    grading = Grading(replica.workspaces, FakeReward(), config)
    path = await opened(replica.http)
    workspace = replica.workspaces.find(path.rpartition("/")[2], owner="")
    score = await grading.grade(workspace, how)
    assert (str(score.verdict), score.reward) == ("time_limit", 0.0)
    assert 1 <= score.run <= 3, "of a second each, in 2.5 s"
    await replica.http.delete(path)


async def test_files_that_take_long_to_copy_use_up_the_answers_own_time(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = replica.workspaces.open_copy

    async def slow(*args: Any, **options: Any) -> Any:
        copy = await honest(*args, **options)
        assert copy.jail.cpu_s > 0, "of unpacking"
        copy.jail.cpu_s *= 1e6
        return copy

    monkeypatch.setattr(replica.workspaces, "open_copy", slow)
    files = {"sums.py": SUMS, **{f"many/{number}": "" for number in range(100)}}
    score = await score_of(replica, files, tests=[GOOD] * 3, policy="fraction")
    assert (score["verdict"], score["run"], score["passed"]) == ("time_limit", 1, 1)
    assert "copies" in score["detail"]


async def test_links_that_lead_out_are_no_reason_not_to_grade(replica: Replica) -> None:
    path = await opened(replica.http, files={"sums.py": SUMS})
    make = {"shell": "ln -s /usr/bin/env env; ln -s ../.. up; ln -s /nowhere broken"}
    assert (await replica.http.post(f"{path}/exec", json=make)).json()["status"] == "ok"
    by_link = {**GOOD, "argv": ["./env", "python3", "sums.py"]}
    assert (await graded(replica, path, tests=[GOOD, by_link]))["reward"] == 1.0


async def test_files_that_cannot_be_copied_are_the_workspaces_own_fault(replica: Replica) -> None:
    path = await opened(replica.http, disk_mb=4)
    await replica.http.post(f"{path}/exec", json={"shell": "truncate -s 3M hole; chmod 0 hole"})
    await replica.http.post(
        f"{path}/exec", json={"shell": "for i in 1 2 3 4; do ln hole h$i; done"}
    )
    score = await graded(replica, path, tests=[{"argv": ["true"], "expected": ""}])
    assert score["verdict"] != "infra_error", score["detail"]


async def test_an_exit_status_alone_decides_only_where_that_is_said() -> None:
    for bad, field in (
        ({"argv": ["true"]}, "expected"),
        ({"argv": ["true"], "trust_exit_code": True, "expected": "x"}, "trust_exit_code"),
        ({"argv": ["true"], "trust_exit_code": True, "exit_code": None}, "trust_exit_code"),
        ({"argv": ["true"], "expected": "x", "stream": True}, "stream"),
    ):
        with pytest.raises(InvalidInput, match=f"tests.0.{field}"):
            GradeWorkspace.from_data({"tests": [bad]}, source="grade")
    for bad, field in (
        ({}, "tests"),
        ({"path": "a"}, "tests"),
        ({"grader": {"kind": "exact", "expected": "1"}}, "path"),
        ({"grader": {"kind": "exact", "expected": "1"}, "path": "../a"}, "path"),
        ({"tests": [GOOD], "files": {"/etc/passwd": ""}}, "files"),
    ):
        with pytest.raises(InvalidInput, match=field):
            GradeWorkspace.from_data(bad, source="grade")


async def test_a_trusted_exit_status_decides() -> None:
    test = ProgramTest(argv=["true"], trust_exit_code=True, exit_code=0)
    assert str((await judged(test, CallResult(status="ok", exit_code=0)))[0]) == "accepted"
    assert str((await judged(test, CallResult(status="failed", exit_code=1)))[0]) == "runtime_error"


async def test_a_weighted_grader_of_a_file_takes_whole_files_in_all_parts() -> None:
    code = {"kind": "code", "tests": [{"stdin": "", "expected": ""}]}
    made = WeightedGrader.model_validate(
        {"kind": "weighted", "parts": [{"grader": code, "weight": 1.0}]}
    )
    whole = of_a_file(made)
    assert whole.parts[0].grader.template == "{completion}"
