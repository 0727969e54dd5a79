"""What the page's server answers about a run directory."""

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from millrace_tools.main import main
from services.ledger import ledger_file
from services.ledger.ledger import Ledger, reading
from services.ledger.sample_group import Prompt
from services.page import run_store
from services.page.http_app import STATIC, open_paths, page_app
from services.page.reading.run_folder import RunFolder
from services.page.reading.trajectory_index import TrajectoryQuery
from services.page.run_store import FolderRunStore
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import LedgerCounts


@pytest.fixture
def client(run_dir: Path) -> TestClient:
    return TestClient(page_app(FolderRunStore(run_dir)))


def test_a_run_says_where_it_stands_and_that_its_ledger_balances(client: TestClient) -> None:
    run = client.get("/api/runs/test-1").json()
    assert (run["step"], run["steps"], run["state"]) == (4, 4, "unfinished")
    assert run["flow"]["groups"]["trained"] == run["flow"]["groups"]["filtered"] == 4
    assert run["flow"]["tokens"]["admitted"] == 160
    assert run["flow"]["tokens_evaluated"] == 200
    assert run["flow"]["imbalance"] == 0


def test_every_figure_of_a_tile_and_a_curve_has_its_definition(client: TestClient) -> None:
    known = client.get("/api/figures").json()["figures"]
    views = STATIC / "views"
    shown = re.findall(r'tile\("(\w+)"', (views / "learning.js").read_text())
    shown += re.findall(r'\["([\w.]+)", "[^"]+"\]', (views / "learning.js").read_text())
    shown += [f"ledger.{name}" for name in LedgerCounts.model_fields]
    assert len(shown) > 25
    assert [name for name in shown if name not in known] == []


def test_curves_and_evaluations_have_a_place_on_each_axis(
    client: TestClient, run_dir: Path
) -> None:
    found = client.get("/api/runs/test-1/curves").json()
    assert found["axes"] == {"step": [1, 2, 3, 4], "time": [2, 4, 6, 8]}
    places = [one["at"] for one in found["evaluations"]]
    assert places == [{"step": 0, "time": 0, "tokens": 0}, {"step": 4, "time": 8, "tokens": 0}]
    with (run_dir / "evaluations.jsonl").open("a") as file:
        file.write('{"name": "heldout", "step": {}}\n')
    assert len(client.get("/api/runs/test-1/curves").json()["evaluations"]) == 2


def test_the_ledger_command_says_the_tokens_that_the_page_says(run_dir: Path, capsys) -> None:
    assert main(["ledger", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "of 160 sampled tokens" in said
    assert "200 more in held-out evaluations" in said


def test_evaluations_of_an_older_run_are_what_its_ledger_does_not_count(run_dir: Path) -> None:
    ledger = Ledger(run_dir / "ledger.sqlite")
    ledger.connection.execute("DELETE FROM facts WHERE name = 'tokens_evaluated'")
    ledger.note(tokens=190)
    assert (ledger.tokens_sampled(), ledger.tokens_evaluated()) == (160, 30)
    ledger.close()


def test_a_run_looked_at_before_its_first_step_shows_its_tokens_later(run_dir: Path) -> None:
    tokens = run_dir / "tokens.jsonl"
    later = tokens.rename(run_dir / "later")
    run = RunFolder(run_dir)
    assert run.trajectories(TrajectoryQuery())["total"] == 4
    later.rename(tokens)
    assert run.trajectories(TrajectoryQuery())["total"] == 8
    assert run.trajectory(0)["token_ids"] == [5, 6, 7]


def test_an_account_that_is_written_meanwhile_is_seen_at_one_moment(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, opened, admitted = Ledger(run_dir / "ledger.sqlite"), ledger_file._opened, 0

    def watched(*args: Any) -> sqlite3.Connection:
        """A group is admitted just before it asks how many there are."""
        db = opened(*args)

        def between(question: str) -> None:
            nonlocal admitted
            if "FROM account" in question and not admitted:
                admitted += 1
                place = Prompt(position=1000 + admitted, epoch=0, task_id="late")
                ledger.admit([place], version=1)

        db.set_trace_callback(between)
        return db

    monkeypatch.setattr(ledger_file, "_opened", watched)
    with reading(run_dir / "ledger.sqlite") as read:
        assert read.flow()["imbalance"] == 0
    assert admitted == 1
    ledger.close()


def test_a_ledger_that_is_locked_is_not_read_behind_the_lock(run_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(ledger_file, "_BUSY_S", 0.01)
    path = run_dir / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as owner:
        owner.execute("PRAGMA journal_mode = DELETE")
        owner.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), reading(path) as read:
            read.flow()


def test_curves_have_every_number_of_a_step_and_the_evaluations(client: TestClient) -> None:
    curves = client.get("/api/runs/test-1/curves").json()
    assert curves["columns"]["reward"] == [0.25, 0.5, 0.75, 1.0]
    assert curves["columns"]["trainer.entropy"][1] == 0.5
    assert [one["pass_at"]["1"] for one in curves["evaluations"]] == [0.1, 0.9]


def test_long_runs_come_as_means_that_keep_the_extremes(client: TestClient) -> None:
    columns = client.get("/api/runs/test-1/curves", params={"points": 2}).json()["columns"]
    assert columns["reward"] == [0.375, 0.875]
    assert columns["reward_low"] == [0.25, 0.75]
    assert columns["reward_high"] == [0.5, 1.0]
    assert columns["step"] == [2, 4]


def test_groups_are_found_by_status_step_and_task(client: TestClient) -> None:
    def found(**asked: object) -> list[int]:
        answer = client.get("/api/runs/test-1/groups", params=asked).json()
        return [group["group_id"] for group in answer["groups"]]

    assert found(status="filtered") == [8, 6, 4, 2]
    assert found(step=2) == [4, 3]
    assert found(task="-1", sort="oldest", limit=2, offset=1) == [4, 6]


def test_trajectories_are_found_by_step_and_read_whole(client: TestClient) -> None:
    found = client.get("/api/runs/test-1/trajectories", params={"step": 3}).json()
    assert found["total"] == 2
    number = found["trajectories"][0]["number"]
    whole = client.get(f"/api/runs/test-1/trajectories/{number}").json()
    assert (whole["step"], whole["trainer"]) == (3, [-0.4, -1.2, None])
    assert client.get("/api/runs/test-1/trajectories/99").status_code == 404


def test_a_group_has_its_rewards_and_the_trajectories_that_are_kept(client: TestClient) -> None:
    group = client.get("/api/runs/test-1/groups/3").json()
    assert group["result"]["rewards"] == [1.0, 0.0]
    assert group["result"]["advantages"] == [1.0, -1.0]
    assert [one["trajectory"] for one in group["trajectories"]] == [1, 0]
    assert client.get("/api/runs/test-1/groups/99").status_code == 404


def test_pushes_have_their_phases_newest_first(client: TestClient) -> None:
    pushes = client.get("/api/runs/test-1/pushes").json()["pushes"]
    assert [one["version"] for one in pushes] == [4, 3, 2, 1]
    assert (pushes[0]["stage_s"], pushes[0]["paused_s"]) == (0.5, 0.2)


def test_what_a_lane_did_at_a_moment_is_told_whole(client: TestClient) -> None:
    asked = {"lane": "sandbox host-1/0", "at": "1015", "slack": "0.1"}
    (span,) = client.get("/api/runs/test-1/moment", params=asked).json()["spans"]
    assert (span["group"], span["verdict"]) == (1, "accepted")


def test_a_run_from_before_tokens_were_kept_shows_its_texts(run_dir: Path) -> None:
    for name in ("tokens", "groups", "timeline"):
        (run_dir / f"{name}.jsonl").unlink()
    client = TestClient(page_app(FolderRunStore(run_dir)))
    assert client.get("/api/runs/test-1/trajectories").json()["total"] == 4
    assert client.get("/api/runs/test-1/timeline").json()["lanes"] == []
    assert client.get("/api/runs/test-1/groups").json()["groups"][0]["result"] is None


def test_a_wrong_question_names_the_field_the_value_and_the_fix(client: TestClient) -> None:
    answer = client.get("/api/runs/test-1/groups", params={"limit": "many"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["value"]) == ("limit", "many")
    assert "integer" in error["fix"]
    for path, field in (
        ("groups?steps=1", "steps"),
        ("moment?at=1", "lane"),
        ("groups/x", "group_id"),
    ):
        answer = client.get(f"/api/runs/test-1/{path}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert client.get("/api/runs/..%2Ftest-1").status_code == 404


def test_of_a_folder_every_run_opens_under_the_name_that_is_listed(run_dir: Path) -> None:
    (run_dir.parent / "latest").symlink_to(run_dir)
    store = FolderRunStore(run_dir.parent)
    assert [run["run_id"] for run in store.runs()] == ["test-1"]
    assert store.open("test-1") is store.open("test-1")


def test_only_so_many_runs_are_held_open(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "_MOST_OPEN", 2)
    store = FolderRunStore(run_dir)
    monkeypatch.setattr(store, "path_of", lambda _: run_dir)
    first, second = store.open("a"), store.open("b")
    assert store.open("a") is first
    store.open("c")
    assert store.open("a") is first
    assert store.open("b") is not second


def test_a_run_that_a_kill_left_half_written_opens(run_dir: Path) -> None:
    for name in ("metrics", "trajectories", "evaluations"):
        with (run_dir / f"{name}.jsonl").open("a") as file:
            file.write('{"step": 5, "rewa')
    (run_dir / "summary.json").write_text('{"run_id": ')
    overview = RunFolder.open(run_dir).overview()
    assert (overview["step"], overview["trajectories"]) == (4, 8)
    assert overview["state"] == "unfinished"


HUGE = "9" * 400
NOT_SAYABLE = [
    f'{{"step": {HUGE}, "group": {HUGE}, "reward": 0, "tokens": 1}}',
    f'{{"lane": "trainer", "kind": "train", "start": 1e300, "end": 1e305, "answers": {HUGE}}}',
    '{"step": 1, "group": 1, "reward": 0, "tokens": 1, "verdict": "\\ud800"}',
    '{"step": NaN, "group": 3, "lane": "trainer", "kind": "train", "start": 0, "end": Infinity}',
]


def test_numbers_and_texts_that_json_cannot_hold_cost_their_own_line_only(run_dir: Path) -> None:
    for name in ("metrics", "tokens", "groups", "timeline", "evaluations"):
        with (run_dir / f"{name}.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in NOT_SAYABLE)
    (run_dir / "summary.json").write_text('{"failure_example": "\\ud800", "wall_s": NaN}')
    (run_dir / "config.yaml").write_text('{steps: .nan, name: "\\ud800"}')
    client = TestClient(page_app(FolderRunStore(run_dir)))
    run = client.get("/api/runs/test-1").json()
    assert (run["trajectories"], run["summary"], run["config"]) == (8, None, {})
    for view in ("curves", "groups", "groups/3", "trajectories", "timeline", "pushes"):
        assert client.get(f"/api/runs/test-1/{view}").status_code == 200
    assert client.get("/api/runs/test-1/timeline").json()["last"] == 1049.0


@pytest.mark.filterwarnings("error::RuntimeWarning")  # a division by zero
def test_the_parts_of_a_time_have_a_width_however_late_it_is(client: TestClient) -> None:
    asked = {"since": "1e10", "until": "1e10", "bins": "2000"}
    assert client.get("/api/runs/test-1/timeline", params=asked).status_code == 200
    answer = client.get("/api/runs/test-1/timeline", params=asked | {"since": "1e11"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


def test_a_folder_whose_name_is_no_text_is_no_run(run_dir: Path) -> None:
    os.rename(run_dir, os.fsencode(run_dir.parent) + b"/\xff")
    (run_dir.parent / "test-2").mkdir()
    (run_dir.parent / "test-2" / "config.yaml").write_text("")
    client = TestClient(page_app(FolderRunStore(run_dir.parent)))
    assert [run["run_id"] for run in client.get("/api/runs").json()["runs"]] == ["test-2"]


def test_a_ledger_that_is_not_there_is_not_made(run_dir: Path) -> None:
    client = TestClient(page_app(FolderRunStore(run_dir)))
    assert client.get("/api/runs/test-1").status_code == 200
    (run_dir / "ledger.sqlite").unlink()
    answer = client.get("/api/runs/test-1/groups")
    assert (answer.status_code, answer.json()["error"]["param"]) == (500, "ledger.sqlite")
    assert not (run_dir / "ledger.sqlite").exists()


def test_a_damaged_ledger_leaves_the_curves_to_see(run_dir: Path) -> None:
    (run_dir / "ledger.sqlite").write_bytes(b"this is no database" * 100)
    client = TestClient(page_app(FolderRunStore(run_dir)))
    assert client.get("/api/runs/test-1").json()["flow"] is None
    assert client.get("/api/runs/test-1/groups").status_code == 500
    assert client.get("/api/runs/test-1/curves").json()["columns"]["step"]


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no config.yaml and no ledger.sqlite"):
        FolderRunStore(tmp_path)
    with pytest.raises(InvalidInput, match="no such folder"):
        FolderRunStore(tmp_path / "none")


def test_a_folder_of_runs_lists_them_and_nothing_beside(run_dir: Path) -> None:
    client = TestClient(page_app(FolderRunStore(run_dir.parent)))
    assert [run["run_id"] for run in client.get("/api/runs").json()["runs"]] == ["test-1"]
    assert client.get("/api/runs/test-1").status_code == 200


def test_every_answer_forbids_scripts_that_are_not_the_pages_own(client: TestClient) -> None:
    for path in ("/", "/static/page.js", "/api/runs", "/api/runs/none", "/nothing"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy


def test_the_page_names_no_other_host(client: TestClient) -> None:
    for path in filter(None, open_paths()):
        if "/vendor/" in path:
            continue
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
