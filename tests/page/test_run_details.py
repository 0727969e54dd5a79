"""What the page's server answers beside curves and groups, and the notes that it takes."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from services.access.access_control import protect
from services.access.config import AccessConfig
from services.page import notes
from services.page.http_app import page_app
from services.page.local_server import local_app
from services.page.reading.run_folder import RunFolder
from services.page.run_store import FolderRunStore

NOTES = "/api/runs/test-1/notes"


@pytest.fixture
def client(run_dir: Path) -> TestClient:
    return TestClient(page_app(FolderRunStore(run_dir)))


def written(client: TestClient) -> list[str]:
    return [note["text"] for note in client.get(NOTES).json()["notes"]]


def test_tasks_and_held_out_answers_are_summed_up(client: TestClient) -> None:
    found = client.get("/api/runs/test-1/tasks", params={"by": "difficulty"}).json()
    assert [one["label"] for one in found["labels"]] == ["3"]
    assert found["available"] == ["kind", "difficulty", "source", "first"]
    pairs = client.get("/api/runs/test-1/heldout").json()
    assert (pairs["before"], pairs["after"], pairs["counts"]["gained"]) == (0, 4, 1)


def test_load_of_engines_and_nodes_comes_as_columns(client: TestClient, run_dir: Path) -> None:
    assert client.get("/api/runs/test-1/usage").json() == {"columns": {}}
    line = {"at": 5.0, "engines": {"in_flight": 3}, "nodes": {"10.0.0.1": {"cpu": 0.5}}}
    (run_dir / "usage.jsonl").write_text(json.dumps(line) + "\n")
    columns = client.get("/api/runs/test-1/usage").json()["columns"]
    assert columns == {"at": [5.0], "engines.in_flight": [3.0], "nodes.10.0.0.1.cpu": [0.5]}


def test_warnings_of_the_log_are_alerts(client: TestClient, run_dir: Path) -> None:
    line = {"time": "t", "level": "warning", "event": "push_failed", "error": "timeout"}
    (run_dir / "log.jsonl").write_text(json.dumps(line) + "\n")
    (alert,) = client.get("/api/runs/test-1/alerts").json()["alerts"]
    assert (alert["title"], alert["why"], alert["count"]) == ("push failed", "timeout", 1)
    assert client.get("/api/runs/test-1/log").json()["lines"] == [line]


def test_an_update_that_was_skipped_is_an_alert_in_a_run_of_many_steps_too(
    client: TestClient, run_dir: Path
) -> None:
    line = {"step": 5, "trainer": {"entropy": 1.0, "skipped_updates": 0}}
    lines = [line | {"step": step} for step in range(5, 2000)]
    lines[-1] = line | {"step": 1999, "trainer": {"skipped_updates": 1}}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)
    (alert,) = client.get("/api/runs/test-1/alerts").json()["alerts"]
    assert alert["title"] == "1 of the newest updates were skipped"


def test_the_deployment_is_shown_where_the_run_keeps_it(client: TestClient, run_dir: Path) -> None:
    assert client.get("/api/runs/test-1/setup").json()["deployment"] == ""
    (run_dir / "deploy.yaml").write_text("applications: []\n")
    assert client.get("/api/runs/test-1/setup").json()["deployment"] == "applications: []\n"


def test_notes_are_kept_with_their_author_and_the_step(client: TestClient, run_dir: Path) -> None:
    for text in ("first", "second <b>é</b>"):
        answer = client.post(NOTES, json={"text": text, "author": "ada"})
        assert answer.status_code == 201
    newest = answer.json()["notes"][0]
    assert (newest["author"], newest["step"]) == ("ada", 4)
    assert written(client) == ["second <b>é</b>", "first"]
    with (run_dir / "notes.jsonl").open("a") as file:
        file.write('{"at": 1, "te')  # a disk that was full
    client.post(NOTES, json={"text": "third"})
    assert written(client) == ["third", "second <b>é</b>", "first"]


def test_pages_that_are_open_hear_of_a_note(client: TestClient, run_dir: Path) -> None:
    run = RunFolder(run_dir)
    before = run.revision()
    client.post(NOTES, json={"text": "x"})
    assert run.revision() != before


def test_an_api_key_says_who_wrote_a_note(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-of-some-length"
    monkeypatch.setenv("PAGE_KEYS", f"- {{name: alice, key: {key}}}")
    app = page_app(FolderRunStore(run_dir))
    protect(app, AccessConfig(api_keys_env="PAGE_KEYS"), service="page")
    client = TestClient(app)
    assert client.post(NOTES, json={"text": "x"}).status_code == 401
    shown = {"authorization": f"Bearer {key}"}
    found = client.post(NOTES, json={"text": "x", "author": "mallory"}, headers=shown).json()
    assert found["notes"][0]["author"] == "alice"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "x" * 4001}, "text"),
        ({"text": "x", "who": "me"}, "who"),
        ([], "body"),
    ],
)
def test_a_note_that_is_none_is_refused_by_its_field(
    client: TestClient, body: Any, field: str
) -> None:
    answer = client.post(NOTES, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert written(client) == []


async def test_a_page_of_another_site_can_write_no_note(run_dir: Path) -> None:
    transport = httpx.ASGITransport(local_app(FolderRunStore(run_dir)))
    plain = {"content-type": "text/plain"}
    elsewhere = {"content-type": "application/json", "sec-fetch-site": "cross-site"}
    neighbour = {"content-type": "application/json", "sec-fetch-site": "same-site"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8800") as http:
        statuses = []
        for headers in ({}, plain, elsewhere, neighbour):
            answer = await http.post(NOTES, content=b'{"text": "x"}', headers=headers)
            statuses.append(answer.status_code)
    assert statuses == [415, 415, 403, 403]
    assert not (run_dir / "notes.jsonl").exists()


def test_notes_are_bounded_and_a_folder_that_cannot_be_written_is_named(
    client: TestClient, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "_MOST_BYTES", 150)
    assert client.post(NOTES, json={"text": "short"}).status_code == 201
    answer = client.post(NOTES, json={"text": "x" * 100})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text")
    (run_dir / "notes.jsonl").unlink()
    os.symlink(tmp_path / "elsewhere", run_dir / "notes.jsonl")
    answer = client.post(NOTES, json={"text": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "notes.jsonl")
    assert not (tmp_path / "elsewhere").exists()
