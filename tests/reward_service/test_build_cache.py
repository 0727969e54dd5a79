"""Headers and programs that are kept: used if they are this user's own and unchanged."""

import asyncio
import io
import os
import resource
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import Jail
from services.reward_service.languages import languages
from services.reward_service.languages.language import Toolchain
from services.reward_service.sandbox import build_cache
from services.reward_service.sandbox.build_cache import BuildCache
from services.reward_service.sandbox.compiler import Compiler, lay_out
from services.reward_service.scoring import Scoring

JAIL = Jail.here(namespaces=False)
NAME, CONTENT = "a" * 64, b"precompiled"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "headers"
    BuildCache(folder, max_mb=1).put(NAME, CONTENT)
    return folder


def kept(folder: Path) -> bytes | None:
    return BuildCache(folder, max_mb=1).get(NAME)


def test_a_header_comes_back_and_is_closed_to_others(folder: Path) -> None:
    assert kept(folder) == CONTENT
    assert BuildCache(folder, max_mb=1).get("b" * 64) is None
    assert (folder.stat().st_mode | (folder / NAME).stat().st_mode) & 0o077 == 0


def test_a_header_that_was_changed_is_not_used(folder: Path) -> None:
    file = folder / NAME
    file.write_bytes(file.read_bytes() + b"x")
    assert kept(folder) is None
    file.write_bytes(b"")
    assert kept(folder) is None


def test_a_header_that_others_could_change_is_not_used(folder: Path) -> None:
    (folder / NAME).chmod(0o622)
    assert kept(folder) is None
    (folder / NAME).chmod(0o600)
    folder.chmod(0o777)
    assert kept(folder) is None
    BuildCache(folder, max_mb=1).put("b" * 64, CONTENT)
    assert not (folder / ("b" * 64)).exists()


def test_a_link_in_the_place_of_a_header_or_of_the_folder_is_not_used(folder: Path) -> None:
    (folder / "real").write_bytes((folder / NAME).read_bytes())
    (folder / "real").chmod(0o600)
    (folder / NAME).unlink()
    (folder / NAME).symlink_to(folder / "real")
    assert kept(folder) is None
    other = folder.parent / "link"
    other.symlink_to(folder)
    assert BuildCache(other, max_mb=1).get("real") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_header_of_another_user_is_not_used(folder: Path) -> None:
    os.chown(folder / NAME, 65534, 65534)
    assert kept(folder) is None


def test_the_files_that_were_not_used_for_longest_go_beyond_the_bound(folder: Path) -> None:
    cache = BuildCache(folder, max_mb=1)
    for number in range(5):
        cache.put(f"{number:064x}", bytes(200_000))
        os.utime(folder / f"{number:064x}", (number, number))
    assert cache.get(f"{0:064x}") is not None  # so it was used last
    cache.put("f" * 64, bytes(200_000))
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [*(f"{number:064x}" for number in (0, 2, 3, 4)), "f" * 64, NAME]
    )


def test_small_files_are_bounded_by_their_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_cache, "_MAX_FILES", 3)
    for number in range(5):
        BuildCache(folder, max_mb=1).put(f"{number:064x}", CONTENT)
        os.utime(folder / f"{number:064x}", (number, number))
    assert len(list(folder.iterdir())) == 3
    assert BuildCache(folder, max_mb=1).get(f"{4:064x}") == CONTENT


async def test_a_compiler_takes_a_kept_header_and_keeps_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = languages()["cpp17"].toolchain
    assert toolchain is not None
    made: list[str] = []

    async def build(_: Compiler, toolchain: object) -> bytes:
        made.append("header")
        return CONTENT

    monkeypatch.setattr(Compiler, "_build_header", build)
    for run in range(2):
        config = RewardServiceConfig(
            header_cache_dir=str(tmp_path / "kept"), toolchain_dir=str(tmp_path / f"{run}")
        )
        folder = await Compiler(config, JAIL)._header(toolchain, NAME)
        assert folder is not None
        assert (folder / toolchain.header_output).read_bytes() == CONTENT
    assert made == ["header"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_what_changes_a_program_changes_its_name(tmp_path: Path) -> None:
    """Or a service would take what an earlier version of it has kept for its own."""
    cpp = languages()["cpp17"]
    assert cpp.toolchain is not None
    names = set()
    changes: list[dict[str, Any]] = [
        {},
        {"flags": ("-O3", *cpp.toolchain.flags)},
        {"header": "// other\n"},
        {"header_flags": ("-O3",)},
        {"environment": (("LANG", "C"),)},
    ]
    for change in changes:
        compiler = Compiler(RewardServiceConfig(toolchain_dir=str(tmp_path)), JAIL)
        other = replace(cpp, toolchain=replace(cpp.toolchain, **change))
        names.add(await compiler.identity(other))
    assert len(names) == len(changes)


def test_a_folder_that_was_not_filled_to_the_end_is_filled_again(tmp_path: Path) -> None:
    toolchain = Toolchain(
        compiler="x", flags=(), header_file="a.x", header_output="a.zip", packed="cache"
    )
    with pytest.raises(zipfile.BadZipFile):
        lay_out(toolchain, b"no archive", tmp_path)
    assert not (tmp_path / "a.zip").exists(), "the file that says that all is there"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("cache/00/one", "1")
    lay_out(toolchain, archive.getvalue(), tmp_path)
    assert (tmp_path / "a.zip").exists()
    assert (tmp_path / "cache/00/one").stat().st_mode & 0o004, "jails have users of their own"


ENDLESS = (
    "constexpr long f(long n) { long s = 0; while (n--) s += n % 7; return s; }\n"
    "template <long n> struct T { static constexpr long v = f(9'000'000) + T<n - 1>::v; };\n"
    "template <> struct T<0> { static constexpr long v = 0; };\nint main() { return T<500>::v; }"
)
RIGHT = "#include <iostream>\nint main(){ long a, b; std::cin >> a >> b; std::cout << a + b; }"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("spoiled", [False, True])
async def test_a_program_that_a_service_has_compiled_is_known_to_the_next(
    tmp_path: Path, new_scoring: Callable[..., Any], spoiled: bool
) -> None:
    """Unless somebody changed it: then it is compiled again."""
    runs = []
    for _ in range(2):
        scoring = await new_scoring("B", slots=1, header_cache_dir=str(tmp_path / "kept"))
        try:
            score = await graded(scoring, RIGHT)
        finally:
            scoring.close()
        assert score.verdict is Verdict.ACCEPTED, score
        assert score.compile is not None
        runs.append(score.compile.cached)
        programs = list((tmp_path / "kept" / "programs").iterdir())
        assert len(programs) == 2, "the sample of the language, and the answer"
        for kept in programs:
            assert kept.stat().st_mode & 0o077 == 0
            if spoiled:
                kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert runs == [False, not spoiled]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("source", "limits"),
    [
        ("int main( {", {}),
        (ENDLESS, {"compile_cpu_s": 2}),
        ("char area[64 << 20] = {1}; int main() {}", {"compile_output_mb": 8}),
        ("template <int n> struct T { T<n + 1> t; }; T<0> t; int main() {}", {}),
    ],
    ids=["no program", "without an end", "too large", "a deep template"],
)
async def test_a_source_that_does_not_compile_is_not_kept(
    tmp_path: Path, new_scoring: Callable[..., Any], source: str, limits: dict[str, int]
) -> None:
    folder = tmp_path / "kept"
    scoring = await new_scoring("B", slots=1, header_cache_dir=str(folder), **limits)
    try:
        scores = [await graded(scoring, source) for _ in range(2)]
        assert (await graded(scoring, RIGHT)).verdict is Verdict.ACCEPTED
    finally:
        scoring.close()
    assert [(score.verdict, score.reward) for score in scores] == 2 * [(Verdict.COMPILE_ERROR, 0.0)]
    assert len(list((folder / "programs").iterdir())) == 2, (
        "the language's sample and the right one"
    )


def test_what_the_disk_does_not_take_is_not_kept(folder: Path) -> None:
    """A limit of the process stands for a full disk: the write fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        BuildCache(folder, max_mb=1).put("b" * 64, bytes(300_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert BuildCache(folder, max_mb=1).get("b" * 64) is None
    assert [file.name for file in folder.iterdir()] == [NAME]


async def graded(scoring: Scoring, source: str) -> Score:
    tests = [{"stdin": "20 1", "expected": "21"}]
    grader = CodeGrader.model_validate({"kind": "code", "language": "cpp17", "tests": tests})
    job = ScoreJob(job_id="j", completion=f"```cpp\n{source}\n```", grader=grader)
    (score,) = await asyncio.wait_for(scoring.score([job]), 300)
    return score
