"""Where compilers and interpreters are found, and what jails see of them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from services.protocol.reward.code_tests import Limits
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.runtimes import slot_runtimes
from services.reward_service.jailed.orders import Order
from services.reward_service.jailed.zygote import CODE_FD
from services.reward_service.languages.language import Language, Runtime, Toolchain
from services.reward_service.languages.tool import Tool, on_path, program_on_path, tool_at
from services.reward_service.sandbox.compiler import Compiler
from services.reward_service.sandbox.launch import Launch


def install(folder: Path, name: str) -> Path:
    path = folder / "opt" / "thing-1" / "bin" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    return path


def test_a_tool_outside_the_system_is_shown_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(tmp_path, "thing")
    link = tmp_path / "thing"
    link.symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = on_path("thing")
    assert tool == Tool(path=str(path), folder=str(path.parents[1]))
    assert tool.home == str(path.parents[1])
    inside = tool.inside(namespaces=True)
    assert inside.path == f"/tools{path}"
    assert tool.mounts() == [(str(path.parents[1]), f"/tools{path.parents[1]}")]
    assert tool.inside(namespaces=False) == tool
    assert on_path("nothing") is None


def test_a_script_is_no_interpreter_that_could_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    install(tmp_path, "thing").rename(tmp_path / "thing")
    assert program_on_path("thing") == on_path("thing") is not None
    (tmp_path / "thing").write_text("#!/bin/sh\n")
    assert program_on_path("thing") is None
    assert on_path("thing") is not None


def test_a_tool_of_the_system_needs_nothing_more() -> None:
    tool = tool_at("/usr/bin/env")
    assert tool.mounts() == []
    assert tool.inside(namespaces=True) == tool


def test_folders_that_it_links_to_stay_where_they_are() -> None:
    tool = Tool(path="/opt/jdk/bin/java", folder="/opt/jdk", links=("/etc/java-17",))
    assert tool.mounts() == [("/opt/jdk", "/tools/opt/jdk"), ("/etc/java-17", "/etc/java-17")]
    assert tool.inside(namespaces=True).home == "/tools/opt/jdk"


def test_a_launch_fills_in_what_a_run_has() -> None:
    runtime = Runtime(
        interpreter="thing",
        arguments=("--heap={memory_mb}m", "{folder}/all", "{program}"),
        environment=(("HOME", "{home}"),),
        reserved_mb=100,
        own_mb=10,
        stack_mb=4,
    )
    tool = Tool(path="/usr/lib/thing/bin/thing")
    launch = Launch(language="thing", runtime=runtime, tool=tool, folder="/shared/a")
    plain = Order(
        **dict.fromkeys(("cpu_s", "wall_s", "longest_s", "begin_s", "peer_ended_s"), 1.0),
        **dict.fromkeys(("address_space", "data", "stack", "output", "lent"), 1),
        kind=2,
        stdin=[0],
    )
    assert launch.applied(plain, Limits(memory_mb=64)) == replace(
        plain,
        arguments=["/usr/lib/thing/bin/thing", "--heap=64m", "/shared/a/all", str(CODE_FD)],
        environment=["HOME=/usr/lib/thing"],
        address_space=164 << 20,
        data=74 << 20,
        stack=4 << 20,
    )


def test_a_slot_prepares_only_the_runtimes_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executable needs no interpreter, so it is always there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(slot_runtimes(namespaces=True, shared="/shared")) == {"go"}
    install(tmp_path, "node").rename(tmp_path / "node")
    facts = slot_runtimes(namespaces=False, shared=None)["javascript"]
    assert facts["interpreter"] == str(tmp_path / "node")
    executable = facts["paths"]["executable"]
    assert executable[0] == facts["interpreter"]
    assert all("/ld-linux" in path for path in executable[1:]), "the loader, and nothing else"


def test_an_installation_that_a_jails_user_cannot_enter_is_known(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "tool").mkdir(parents=True)
    closed.chmod(0o700)
    jail = Jail.here(namespaces=False)
    assert jail.reaches(str(closed / "tool")) == (os.geteuid() != 0)
    assert jail.reaches("/usr")


def test_what_a_language_lacks_is_known_before_an_answer_needs_it(tmp_path: Path) -> None:
    (tmp_path / "closed" / "bin").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    closed = Tool(path=str(tmp_path / "closed/bin/thing"), folder=str(tmp_path / "closed"))
    jail = Jail.here(namespaces=False)
    compiler = Compiler(RewardServiceConfig(toolchain_dir=str(tmp_path / "toolchain")), jail)

    def lacks(tool: Tool | None) -> list[str]:
        toolchain = Toolchain(compiler="thing", package="things", flags=(), find=lambda _: tool)
        runtime = Runtime(interpreter="thing", find=lambda _: tool, reserved_mb=1, own_mb=1)
        compiled = Language(name="compiled", tags=(), toolchain=toolchain)
        read = Language(name="read", tags=(), runtime=runtime)
        return [compiler.lacks(one) for one in (compiled, read)]

    assert lacks(tool_at("/usr/bin/env")) == ["", ""]
    assert lacks(None) == [
        "compiled needs thing, which is not here: `apt-get install things`.",
        "read needs thing, which is not here: `apt-get install thing`.",
    ]
    if os.geteuid() == 0:
        assert all("only root may enter" in said for said in lacks(closed))
