"""The wheel holds everything that is needed at run time, and nothing else."""

import subprocess
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from millrace_tools.main import main

ROOT = Path(__file__).parents[2]
STARTER = "millrace_tools/demo/starter_files/"
PACKED = {
    "services/": "services/",
    "environments/": "environments/",
    "millrace_tools/": "millrace_tools/",
    "deploy/": f"{STARTER}deploy/",
    "examples/": f"{STARTER}examples/",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone, so nobody can say which files belong to it")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_the_wheel_has_every_file_of_the_services_and_of_the_starter(
    wheel: zipfile.ZipFile,
) -> None:
    wanted = {
        place + name.removeprefix(folder)
        for name in _tracked()
        for folder, place in PACKED.items()
        if name.startswith(folder)
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert wanted <= packed
    assert {
        name for name in packed - wanted if not name.startswith(("services/", "millrace_tools/"))
    } == set()
    assert f"{STARTER}examples/tiny_code/run.yaml" in packed


def test_the_wheel_names_its_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "millrace = millrace_tools.main:main" in wheel.read(entry).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_command_says_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"millrace {version('millrace')}\n"
    major, minor, patch = _declared().split(".")
    assert major.isdigit()
    assert minor.isdigit()
    assert patch.isdigit()


def _declared() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_the_changelog_begins_with_what_is_unreleased_or_the_version_that_is_made() -> None:
    heading = next(
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    )
    assert heading.split()[1].strip("[]") in ("Unreleased", _declared())


def test_init_writes_what_is_missing_and_leaves_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "new" / "deploy" / "laptop.yaml"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path / "new")]) == 0
    assert kept.read_text(encoding="utf-8") == "mine"
    written = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert f"{len(written) - 1} files written to" in capsys.readouterr().out
    assert (tmp_path / "new" / "examples" / "tiny_code" / "run.yaml").exists()
    assert not list((tmp_path / "new").rglob("tasks.jsonl"))
