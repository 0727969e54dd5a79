"""What GitHub runs is what anybody runs, and its files are of the form that GitHub reads."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.guides.shell import check_command

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
    ],
)
def test_the_files_fit_githubs_schemas(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def _commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_the_tests_by_the_command_of_the_clone(workflow: Path) -> None:
    commands = [
        command.removeprefix("sudo --preserve-env=PATH ") for command in _commands(workflow)
    ]
    nightly = {"make test-slow", "make test-operations"}
    assert ".ci/run" in commands or nightly <= set(commands)
    for command in commands:
        if command.startswith("make "):
            check_command(command.split())


def test_only_publishing_may_show_who_it_is() -> None:
    release = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8"))
    allowed = {name for name, job in release["jobs"].items() if "id-token" in str(job)}
    assert allowed == {"publish"}
    assert release["jobs"]["publish"]["needs"] == "build"


def test_issue_forms_ask_for_what_they_need() -> None:
    forms = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
    for form in (path for path in forms if path.name != "config.yml"):
        asked = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert asked["name"]
        assert asked["description"]
        assert any(one.get("validations", {}).get("required") for one in asked["body"])
