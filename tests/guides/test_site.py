"""The site of docs/ builds, every link in it leads somewhere, and its reference is complete."""

import logging
import pkgutil
import re
import runpy
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import services
from docs.site import reference
from docs.site.models import meanings_of, models_of
from services.protocol.strict import StrictModel

ROOT = Path(__file__).parents[2]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
FETCHING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A link, an anchor or a page of the navigation that is missing fails it."""
    folder = tmp_path_factory.mktemp("site")
    warnings = _Warnings()
    logger = logging.getLogger("mkdocs")
    logger.addHandler(warnings)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=False))
    finally:
        logger.removeHandler(warnings)
    assert warnings.messages == []
    return folder


class _Warnings(logging.Handler):
    """Keeps what MkDocs warns of: its strict mode only counts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class _Fetched(HTMLParser):
    """Addresses that a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):
            return
        if address := given.get(FETCHING.get(tag, "")):
            self.addresses.append(address)


def test_every_page_is_built_and_every_link_in_it_leads_somewhere(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in _markdown()}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    indexes = {page.with_name("index") if page.name == "README" else page for page in pages}
    assert indexes <= built
    assert Path("project/architecture") in built


def _markdown() -> list[Path]:
    return list((ROOT / "docs").rglob("*.md"))


def test_nothing_is_fetched_from_another_host_when_a_page_is_read(site: Path) -> None:
    fetched: set[str] = set()
    for page in site.rglob("*.html"):
        parser = _Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        fetched.update(parser.addresses)
    for style in site.rglob("*.css"):
        fetched.update(re.findall(r"(?:@import |url\()[\"']?([^\"')]+)", style.read_text()))
    assert any(address.endswith(".css") for address in fetched)
    assert [one for one in fetched if re.match(r"(https?:)?//", one)] == []


def _configuration_modules() -> list[str]:
    protocol = import_module("services.protocol")
    found = pkgutil.walk_packages(protocol.__path__, "services.protocol.")
    names = [one.name for one in found if not one.ispkg]
    for service in pkgutil.iter_modules(services.__path__):
        if (Path(services.__path__[0]) / service.name / "config.py").exists():
            names.append(f"services.{service.name}.config")
    return names


def test_every_configuration_class_has_a_place_and_every_field_a_meaning() -> None:
    placed = {model for models in reference.model_classes().values() for model in models}
    for module in _configuration_modules():
        for model in models_of(module):
            if model is not StrictModel:
                assert model in placed, f"{model} is on no page of docs/site/reference.py"
    silent = [
        f"{model.__name__}.{name}"
        for model in placed
        for name, meaning in meanings_of(model).items()
        if not meaning.strip()
    ]
    assert silent == []


def test_the_reference_in_the_repository_is_that_of_the_code() -> None:
    made = MAKER["texts"]()
    assert {path.name for path in made} == {
        path.name for path in (ROOT / "docs" / "reference").iterdir()
    }
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, "run `python docs/make_reference.py`"


def test_the_pages_of_commands_and_paths_have_them_all() -> None:
    pages = reference.pages()
    for command in ("run", "check", "grade", "demo"):
        assert f"## {command}\n\n```text\nusage: millrace {command}" in pages["reference/cli.md"]
    assert (
        "`ray_millrace_run_groups_total` | counter | `run`, `status`"
        in pages["reference/metrics.md"]
    )


UNLISTED = {"/", "/static", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
"""Files, a redirection and what FastAPI adds: nothing that a program would ask for."""


def test_every_path_that_a_service_answers_is_in_the_http_reference() -> None:
    folder = Path(services.__path__[0])
    speaking = {
        app.parent.name for app in folder.rglob("app.py") if "serve.ingress" in app.read_text()
    }
    assert set(reference.http_services()) == speaking
    page = reference.pages()["reference/http.md"]
    operations = [
        f"{method} {prefix}{route.path}".replace(":path}", "}")
        for _, prefix, app in reference.http_services().values()
        for route in app.routes
        if route.path not in UNLISTED and getattr(route, "include_in_schema", True)
        for method in route.methods - {"HEAD"}
    ]
    assert len(operations) > 30
    assert [one for one in operations if f"### {one}\n" not in page] == []


def test_a_body_and_a_query_have_their_fields_in_the_http_reference() -> None:
    page = reference.pages()["reference/http.md"]
    runs = page.partition("### POST /v1/runs\n")[2].partition("###")[0]
    assert "Body, `application/json`: [`RunRequest`](run-file.md#runrequest)" in runs
    grade = page.partition("### POST /v1/grade\n")[2].partition("###")[0]
    assert "| `jobs` | required | list of `GradeJob`, at least 1 |" in grade
    timeline = page.partition("/timeline\n")[2].partition("###")[0]
    assert (
        "| `bins` | query | integer, ≥ 10, ≤ 2000 | `120` | Equal parts of that time; where"
        in timeline
    )
