"""Every code block of README and guides is run by a test, or a list says why it is not."""

import ast
import importlib
import subprocess

import pytest

from tests.guides.blocks import EXAMPLES, FIRST_CHANGES, GUIDES, ROOT, SHELL, Block, blocks
from tests.guides.documents import check_json, check_yaml
from tests.guides.run_by import COMMANDS_RUN_BY, NOT_READ, NOT_RUN, PYTHON_RUN_BY
from tests.guides.shell import check_command
from tests.guides.walk import walked
from tests.operations.tour import PAGE as TOUR

UNCHECKED = (
    *(
        "apt-get",
        "docker",
        "grafana",
        "jq",
        "kubectl",
        "pre-commit",
        "prometheus",
        "promtool",
        "sed",
    ),
    "sqlite3",
)
"""Programs that tests cannot ask what they would accept."""

READ = ("bash", "sh", "python", "cpp", "yaml", "json", "text", "")

_GUIDES = [block for block in blocks(*GUIDES) if block.page != FIRST_CHANGES]
_ALL = [*_GUIDES, *blocks(*EXAMPLES)]
_SHELL = [block for block in _ALL if block.language in SHELL]
_PYTHON = [block for block in _ALL if block.language == "python"]


def test_every_language_is_read_or_said_not_to_be() -> None:
    languages = {block.language for block in _ALL}
    assert languages - set(READ) == set(NOT_READ)


@pytest.mark.parametrize("block", _SHELL, ids=str)
def test_a_shell_block_has_commands_that_their_programs_accept(block: Block) -> None:
    done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert block.commands
    for words in block.commands:
        if words[0].rpartition("/")[2] not in UNCHECKED:
            check_command(words)


@pytest.mark.parametrize("block", _PYTHON, ids=str)
def test_a_python_block_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("services."):
            module = importlib.import_module(node.module)
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []


@pytest.mark.parametrize("block", [b for b in _ALL if b.language == "yaml"], ids=str)
def test_a_yaml_block_is_accepted_by_the_class_that_reads_it(block: Block) -> None:
    check_yaml(block.text)


@pytest.mark.parametrize("block", [b for b in _ALL if b.language == "json"], ids=str)
def test_a_json_block_is_accepted_by_the_class_that_reads_it(block: Block) -> None:
    check_json(block.text)


def test_every_command_of_a_guide_is_run_or_said_not_to_be() -> None:
    played = {tuple(words) for block in [*walked(), *blocks(TOUR)] for words in block.commands}
    told = [*COMMANDS_RUN_BY, *NOT_RUN]
    used: set[str] = set()
    for block in _GUIDES:
        for words in block.commands if block.language in SHELL else []:
            if tuple(words) not in played:
                fitting = [one for one in told if " ".join(words).startswith(one)]
                assert fitting, f"{block}: nobody runs {' '.join(words)}"
                used.update(fitting)
    assert used == set(told)


def test_every_program_of_a_guide_is_run_by_a_test_that_reads_the_page() -> None:
    played = {str(block) for block in [*walked(), *blocks(TOUR)]}
    pages = {
        block.page
        for block in _GUIDES
        if block.language in ("python", "cpp") and str(block) not in played
    }
    assert pages == set(PYTHON_RUN_BY)
    for page, test in PYTHON_RUN_BY.items():
        assert page.removeprefix("docs/") in (ROOT / test).read_text(encoding="utf-8")
    for test in COMMANDS_RUN_BY.values():
        assert (ROOT / test).exists()


def test_the_example_says_the_same_commands_as_the_readme() -> None:
    said = [words for block in walked() for words in block.commands]
    shell = [one for one in blocks("examples/tiny_code/README.md") if one.language in SHELL]
    extra = [words for one in shell for words in one.commands if words not in said]
    assert [words for words in extra if words[0] != "curl"] == [
        ["make", "demo"],
        ["ray", "start", "--head", "--num-cpus=2"],
        # From random weights, after that.
        ["python", "-m", "examples.tiny_code.make_model", "--seed", "0", "--untrained"],
        ["millrace", "run", "examples/tiny_code/warm_up.yaml"],
    ]
