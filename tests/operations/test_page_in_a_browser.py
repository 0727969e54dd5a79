"""The page in Debian's chromium, at a desk and on a phone, with answers that attack it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from services.access.access_control import protect
from services.access.config import AccessConfig
from services.orchestrator.observers.timeline import Timeline
from services.page.http_app import open_paths, page_app
from services.page.run_store import FolderRunStore
from services.protocol.run.figures import FIGURES
from tests.operations.page_browser import needs_chromium, opened, served
from tests.page.made_run import HOSTILE, STEPS, add_step, make_run, write_log

RUN = "#/test-1"
KEY = "a-key-of-some-length"

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def url(run_dir: Path) -> Iterator[str]:
    with served(page_app(FolderRunStore(run_dir))) as url:
        yield url


def test_what_a_model_writes_stays_text(browser: Browser, url: str, troubles: list[str]) -> None:
    page = opened(browser, troubles)
    for view in ("groups/1", "trajectories", "trajectories/0"):
        page.goto(f"{url}{RUN}/{view}")
        expect(page.get_by_text(HOSTILE[:12]).first).to_be_visible()
        expect(page).to_have_title("test-1 · Millrace")
        assert page.locator("main img, main script").count() == 0
    # And where somebody forgets it, the browser refuses to make markup of a string.
    forget = "document.body.insertAdjacentHTML('beforeend', '<b>markup</b>')"
    assert page.evaluate(f"(() => {{ try {{ {forget} }} catch (e) {{ return e.name }} }})()") == (
        "TypeError"
    )
    page.context.close()


def test_a_row_opens_what_it_shows(browser: Browser, url: str, troubles: list[str]) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}{RUN}/groups")
    page.locator("tbody tr").last.locator("td.task").click()
    expect(page.locator(".crumbs")).to_have_text("Groups / 1")
    page.locator("tbody tr .verdict").last.click()
    expect(page.locator(".crumbs")).to_contain_text("group 1")
    page.goto(f"{url}{RUN}/tasks")
    page.locator(".outcomes .choice button").last.click()
    page.get_by_role("button", name="Never solved").click()
    expect(page.locator(".outcomes .hint")).to_contain_text("No answer of any group has passed")
    assert troubles == []
    page.context.close()


def test_a_step_that_a_run_adds_appears_by_itself(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path)
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(url)  # of one run alone it is shown at once
        expect(page.locator(".steps")).to_contain_text(f"step {STEPS}")
        expect(page.locator("#link")).to_have_text("following")
        add_step(folder, STEPS + 1)
        expect(page.locator(".steps")).to_contain_text(f"step {STEPS + 1}")
        page.context.close()


def test_a_run_whose_folder_is_removed_is_said_to_be_gone(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path)
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/ledger")
        link = page.locator("#link")
        expect(link).to_have_text("following")
        shutil.rmtree(folder)
        expect(link).to_have_text("gone")
        page.goto(f"{url}{RUN}/learning")
        expect(page.get_by_text("Its directory is not there any more.")).to_be_visible()
        page.goto(f"{url}#/%")  # no name at all
        expect(page.get_by_text("URI malformed")).to_be_visible()
        page.context.close()


def test_a_timeline_that_was_empty_fills_and_a_condition_that_cannot_be_met_is_said(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path)
    timeline = (folder / "timeline.jsonl").rename(folder / "later")
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/timeline")
        expect(page.get_by_text("No timeline.")).to_be_visible()
        timeline.rename(folder / "timeline.jsonl")
        expect(page.locator("canvas.lanes")).to_be_visible()
        expect(page.locator("td", has_text="rank 0").first).to_be_visible()
        assert troubles == []
        page.goto(f"{url}{RUN}/groups")
        step = page.locator(".filters input[type=number]")
        step.fill("1.5")
        expect(page.get_by_text("This cannot be shown.")).to_be_visible()
        step.fill("2")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.context.close()


def test_the_timeline_says_what_the_run_waited_for_and_has_spans_when_near(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path)
    timeline = Timeline(folder / "timeline.jsonl")
    for step in range(2000):
        at = 2000.0 + step
        timeline.span("trainer", "wait", at, at + 0.4, cause="score")
        timeline.span("trainer", "train", at + 0.4, at + 1.0, step=step)
    timeline.close()
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/timeline")
        expect(page.locator(".waited")).to_contain_text("most of all for scores")
        expect(page.locator(".side-band").first).to_contain_text("score")
        lanes = page.locator("canvas.lanes")
        expect(lanes).to_have_attribute("data-near", "3")  # all but the trainer
        page.get_by_role("button", name="last 10 s").click()
        expect(page.locator(".range")).to_contain_text("10.0 s of")
        expect(lanes).to_have_attribute("data-near", "4")
        page.get_by_role("button", name="zoom in").click()
        expect(page.locator(".range")).to_contain_text("5.0 s of")
        assert troubles == []
        page.context.close()


def test_tasks_are_summed_up_and_held_out_answers_stand_side_by_side(
    browser: Browser, url: str, troubles: list[str]
) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}{RUN}/tasks")
    expect(page.locator("table.labels")).to_contain_text("code")
    page.get_by_role("button", name="difficulty").click()
    expect(page.locator("table.labels tbody td").first).to_have_text("3")
    page.get_by_role("button", name="Always solved 0").click()
    expect(page.locator(".outcomes")).to_contain_text("None.")
    pair = page.locator(".answer-pair")
    expect(pair.locator(".answer-box").first).to_contain_text("after 0")
    expect(pair.locator(".answer-box").last).to_contain_text(f"after {STEPS}")
    page.get_by_label("tasks").select_option("lost")
    expect(page.get_by_text("No task fits.")).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    assert troubles == []
    page.context.close()


def test_log_lines_are_searched_and_warnings_are_alerts(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path)
    write_log(folder)
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/learning")
        page.get_by_role("link", name="2 alerts").click()
        expect(page.locator(".alerts li strong")).to_have_text(["push failed", "rollout failed"])
        expect(page.locator("table.log tbody tr")).to_have_count(STEPS + 3)
        page.get_by_label("words").fill("img ONERROR")
        expect(page.locator("table.log tbody tr")).to_have_count(1)
        page.get_by_label("words").fill("")
        page.get_by_label("level").select_option("warning")
        expect(page.locator("table.log tbody tr")).to_have_count(2)
        assert page.locator("main img, main script").count() == 0
        assert troubles == []
        page.context.close()


def test_a_note_is_written_and_stays(browser: Browser, troubles: list[str], tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/learning")
        page.get_by_label("Note").fill(f"A larger group next time. {HOSTILE}")
        page.get_by_label("Your name").fill("ada")
        page.get_by_role("button", name="Add note").click()
        expect(page.locator(".notes li")).to_contain_text("ada at step 4")
        page.reload()
        expect(page.locator(".notes li")).to_contain_text("A larger group next time.")
        assert page.locator("main img, main script").count() == 0
        assert troubles == []
        page.context.close()


def test_the_configuration_shows_what_the_run_file_set_and_everything(
    browser: Browser, url: str, troubles: list[str]
) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}{RUN}/setup")
    rows = page.locator("table.setup tbody tr")
    expect(rows.filter(has_text="batch_groups")).to_contain_text("required")
    expect(rows.filter(has_text="clip_low")).to_have_count(0)
    page.get_by_role("button", name="all (").click()
    expect(rows.filter(has_text="clip_low")).to_contain_text("0.2")
    page.get_by_label("search keys").fill("learning_rate algorithm")
    expect(rows.first).to_contain_text("algorithm.")
    assert troubles == []
    page.context.close()


def test_the_axis_of_a_share_ends_at_all_of_it_also_where_every_value_is_0(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path)
    with served(page_app(FolderRunStore(folder))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/learning")
        chart = page.get_by_label("Clipped and masked tokens").locator(".uplot")
        expect(chart).to_have_attribute("data-top", "0.01")
        for one in page.locator(".chart .uplot[data-top]").all():
            assert float(one.get_attribute("data-top") or 0) <= 10
        tile = page.locator(".tile[data-figure=tokens_sampled]")
        expect(tile).to_contain_text("160")
        expect(tile).to_contain_text("and 200 in evaluations")
        expect(tile).to_have_attribute("title", FIGURES["tokens_sampled"])
        page.goto(f"{url}{RUN}/ledger")
        expect(page.locator("[data-figure=tokens_sampled]")).to_contain_text("160")
        page.context.close()


def test_keys_choose_views_and_go_through_tokens(
    browser: Browser, url: str, troubles: list[str]
) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}{RUN}/learning")
    expect(page.locator(".chart").first).to_be_visible()
    page.keyboard.press("3")
    expect(page.locator("canvas.lanes")).to_be_visible()
    page.goto(f"{url}{RUN}/trajectories/0")
    page.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    told = page.locator(".token-facts")
    expect(told).to_contain_text("token 1")
    expect(told).to_contain_text("version 1 on a")
    expect(told).to_contain_text("gap -0.2000")
    page.get_by_role("button", name="advantage").click()
    expect(page.locator(".token-legend")).to_contain_text("to be made")
    page.context.close()


def test_without_its_key_the_page_shows_nothing_of_any_run(
    browser: Browser, run_dir: Path, troubles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_KEYS", f"- {{name: alice, key: {KEY}}}")
    app = page_app(FolderRunStore(run_dir))
    protect(app, AccessConfig(api_keys_env="PAGE_KEYS"), service="page", open_paths=open_paths())
    with served(app) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}{RUN}/learning")
        field = page.get_by_label("API key")
        expect(field).to_be_visible()
        assert "test-1" not in page.content()
        field.fill("another-key-of-some-length")
        field.press("Enter")
        expect(field).to_have_value("")
        field.fill(KEY)
        field.press("Enter")
        expect(page.locator("h1")).to_have_text("test-1")
        expect(page.locator("#link")).to_have_text("following")  # the stream shows it, too
        page.context.close()
