"""What the page's server answers about several runs."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from services.page.http_app import page_app
from services.page.run_store import FolderRunStore
from tests.page.several_runs import make_runs


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    make_runs(tmp_path)
    return TestClient(page_app(FolderRunStore(tmp_path)))


def test_the_list_has_every_runs_figures_newest_first(client: TestClient) -> None:
    answer = client.get("/api/runs").json()
    assert [run["run_id"] for run in answer["runs"]] == ["broken", "fast", "slow"]
    fast = answer["runs"][1]
    assert (fast["values"]["pass_best"], fast["texts"]["pass_final"]) == (0.9, "80.0%")
    assert {"pass_best", "pass_final", "steps", "elapsed_s", "model", "algorithm", "state"} <= {
        figure["name"] for figure in answer["figures"]
    }


def test_a_run_and_the_list_have_the_same_figures(client: TestClient) -> None:
    for run in client.get("/api/runs").json()["runs"]:
        assert client.get(f"/api/runs/{run['run_id']}").json()["figures"] == run


def test_tokens_sampled_are_those_of_the_ledger(client: TestClient) -> None:
    run = client.get("/api/runs/fast").json()
    assert run["figures"]["values"]["tokens_sampled"] == run["flow"]["tokens"]["admitted"]


def test_runs_are_compared_with_their_curves(client: TestClient) -> None:
    asked = {"run": ["slow", "fast", "slow"], "by": "tokens", "smoothing": 0.5}
    answer = client.get("/api/compare", params=asked).json()
    assert [run["run_id"] for run in answer["runs"]] == ["fast", "slow"]
    rewards = next(c for c in answer["charts"] if c["curve"]["title"] == "Mean reward")
    assert rewards["lines"]["A"]["x"] == [500, 1000, 1500, 2000]
    assert len(rewards["lines"]["B"]["smooth"]) == 4


def test_the_report_is_a_file_to_save(client: TestClient) -> None:
    answer = client.get("/api/report", params={"run": ["slow", "fast"]})
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({}, 400, "run"),
        ({"run": ["fast"] * 25}, 400, "run"),
        ({"run": ["nobody"]}, 404, "run_id"),
        ({"run": ["fast"], "smoothing": "1"}, 400, "smoothing"),
        ({"run": ["fast"], "by": "weight"}, 400, "by"),
    ],
)
def test_a_comparison_that_cannot_be_made_names_the_field(
    client: TestClient, asked: dict[str, object], status: int, field: str
) -> None:
    answer = client.get("/api/compare", params=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, field)
