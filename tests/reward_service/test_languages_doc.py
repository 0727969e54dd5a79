"""Every block of docs/languages.md as a language, and its table against the code."""

import importlib
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from millrace_tools.grade.code_job import read_code_job
from services.protocol.reward.reward_service import Verdict
from services.reward_service import languages as table
from services.reward_service.languages import languages
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = (Path(__file__).parents[2] / "docs" / "languages.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
ANSWERS = {
    "c17": ("gcc", ".c", '#include <stdio.h>\nint main() { puts("2"); return 0; }\n'),
    "perl": ("perl", ".pl", 'my $n = <STDIN>; print $n + 1, "\\n";\n'),
}
"""For the language of each block: its tool, and an answer that prints 2."""


@pytest.fixture(scope="module")
def new_languages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The blocks as files beside those of the package."""
    folder = tmp_path_factory.mktemp("languages")
    for name, block in zip(ANSWERS, BLOCKS, strict=True):
        (folder / f"{name}_of_the_guide.py").write_text(block, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table, "__path__", [*table.__path__, str(folder)])
        importlib.invalidate_caches()
        table.languages.cache_clear()
        yield
        for name in ANSWERS:
            sys.modules.pop(f"{table.__name__}.{name}_of_the_guide", None)
    table.languages.cache_clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["A", "B"])
async def scoring(
    request: pytest.FixtureRequest, new_languages: None, new_scoring: Any
) -> AsyncIterator[Scoring]:
    scoring = await new_scoring(request.param, slots=1)
    yield scoring
    scoring.close()


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_language_of_the_page_is_one_file(
    scoring: Scoring, tmp_path: Path, name: str
) -> None:
    tool, suffix, source = ANSWERS[name]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    answer = tmp_path / f"answer{suffix}"
    answer.write_text(source)
    tests = tmp_path / "tests.yaml"
    tests.write_text('[{stdin: "1", expected: "2"}]')
    (score,) = await scoring.score([read_code_job(str(answer), str(tests))])
    assert (score.verdict, score.detail) == (Verdict.ACCEPTED, "")
    assert (score.compile is None) == (languages()[name].toolchain is None)


async def test_the_table_has_every_language() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE.partition("## Where a tool")[0], re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(languages()) - set(ANSWERS)
