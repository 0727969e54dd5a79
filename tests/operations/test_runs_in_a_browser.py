"""The list of runs, and runs side by side, in Debian's chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from services.orchestrator.run_folder.run_directory import RunDirectory
from services.page.http_app import page_app
from services.page.report.report import report
from services.page.run_store import FolderRunStore
from tests.operations.page_browser import needs_chromium, opened, served
from tests.page.several_runs import STEPS, evaluation, make, make_runs

pytestmark = needs_chromium
COMPARED = "#/?run=slow&run=fast&run=broken"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with served(page_app(FolderRunStore(folder))) as url:
        yield url


def test_a_row_of_the_list_opens_its_run(browser: Browser, url: str, troubles: list[str]) -> None:
    page = opened(browser, troubles)
    page.goto(url)
    row = page.locator("tbody tr", has_text="fast")
    expect(row).to_contain_text("90.0%")
    expect(row).to_contain_text("80.0%")
    expect(row).to_contain_text("finished")
    row.get_by_text("80.0%").click()
    expect(page.locator("h1")).to_have_text("fast")
    page.context.close()


def test_a_run_has_the_figures_of_the_list_and_goes_side_by_side_with_others(
    browser: Browser, url: str, troubles: list[str]
) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}#/fast/learning")
    rate = page.locator(".tile[data-figure=heldout_pass_rate]")
    expect(rate).to_contain_text("80.0%")
    expect(rate).to_contain_text("10.0% before training, best 90.0% at step 2")
    expect(page.locator(".tile[data-figure=elapsed_s]")).to_contain_text("9.0 s")
    expect(page.locator(".tile[data-figure=tokens_sampled]")).to_contain_text("2,000")
    tokens = page.get_by_role("button", name="tokens")
    tokens.click()
    expect(tokens).to_have_attribute("aria-pressed", "true")
    page.get_by_role("link", name="compare").click()
    page.get_by_label("Add a run").select_option("slow")
    expect(page.locator(".run-name")).to_have_text(["fast", "slow"])
    assert troubles == []
    page.context.close()


def test_the_list_is_sorted_and_searched(browser: Browser, url: str, troubles: list[str]) -> None:
    page = opened(browser, troubles)
    page.goto(url)
    names = page.locator("tbody .run-name")
    expect(names).to_have_text(["broken", "fast", "slow"])
    page.get_by_role("button", name="best pass rate").click()
    expect(names).to_have_text(["fast", "slow", "broken"])
    page.get_by_role("button", name="final pass rate").click()
    expect(names).to_have_text(["fast", "slow", "broken"])
    page.get_by_role("button", name="final pass rate").click()
    expect(names).to_have_text(["slow", "fast", "broken"])  # without a rate: last
    page.locator("input[type=search]").fill("cispo")
    expect(names).to_have_text(["fast"])
    page.context.close()


def test_chosen_runs_go_side_by_side_the_best_first(
    browser: Browser, url: str, troubles: list[str]
) -> None:
    page = opened(browser, troubles)
    page.goto(url)
    compare = page.locator(".main-button")
    expect(compare).to_be_disabled()
    for name in ("slow", "fast"):
        page.get_by_label(f"Compare {name}").check()
    compare.click()
    expect(page.locator(".run-name")).to_have_text(["fast", "slow"])
    expect(page.locator("tbody tr", has_text="algorithm.learning_rate")).to_contain_text("0.0001")
    rates = page.locator(".chart", has_text="Held-out pass rate")
    expect(rates.locator(".value")).to_have_text(["80.0%", "40.0%"])
    page.get_by_label("Add a run").select_option("broken")
    expect(page.locator(".run-name")).to_have_text(["fast", "slow", "broken"])
    page.get_by_label("Leave out fast").click()
    expect(page.locator(".run-name")).to_have_text(["slow", "broken"])
    assert troubles == []
    page.context.close()


def test_axis_and_smoothing_stay_in_the_address(
    browser: Browser, url: str, troubles: list[str]
) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}{COMPARED}")
    page.get_by_role("button", name="tokens").click()
    page.get_by_label("Smoothing").fill("0.5")
    page.wait_for_url("**smoothing=0.5**")
    page.reload()
    expect(page.get_by_role("button", name="tokens")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Smoothing")).to_have_value("0.5")
    rewards = page.locator(".chart", has_text="Mean reward")
    expect(rewards.locator(".entry:visible")).to_have_count(3)
    assert troubles == []
    page.context.close()


def test_a_comparison_follows_its_runs(
    browser: Browser, troubles: list[str], tmp_path: Path
) -> None:
    paths = make_runs(tmp_path)
    with served(page_app(FolderRunStore(tmp_path))) as url:
        page = opened(browser, troubles)
        page.goto(f"{url}#/?run=slow&run=fast")
        expect(page.locator(".run-name")).to_have_text(["fast", "slow"])
        RunDirectory(paths["slow"]).append_evaluation(evaluation("heldout", STEPS, 1.0))
        expect(page.locator(".run-name")).to_have_text(["slow", "fast"])
        page.goto(url)
        expect(page.locator("tbody tr")).to_have_count(3)
        make(tmp_path, "new", {})
        expect(page.locator("tbody tr")).to_have_count(4)
        page.context.close()


def test_a_comparison_is_saved_as_one_file_that_opens_anywhere(
    browser: Browser, url: str, troubles: list[str], tmp_path: Path
) -> None:
    page = opened(browser, troubles)
    page.goto(f"{url}{COMPARED}")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as one file").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    assert saved.name == "3-runs.html"
    assert troubles == []
    page.context.close()


def test_a_report_needs_no_script_to_choose_its_axis(
    browser: Browser, folder: Path, troubles: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report(FolderRunStore(folder).comparison(["slow", "fast"])), encoding="utf-8")
    page = opened(browser, troubles, java_script_enabled=False)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    chart = page.locator("figure", has_text="Mean reward")
    expect(chart.locator("svg.by-step")).to_be_visible()
    expect(chart.locator("svg.by-tokens")).to_be_hidden()
    page.get_by_label("by tokens sampled").check()
    expect(chart.locator("svg.by-tokens")).to_be_visible()
    expect(chart.locator("svg.by-step")).to_be_hidden()
    assert asked == [file.as_uri()]
    assert troubles == []
    page.context.close()
