"""`millrace versions`, and how commands join a cluster."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from millrace_tools.cluster.versions import show_versions
from millrace_tools.main import main
from services.protocol.weights.version_ledger import VersionOutcome, VersionRecord

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef0123456789abcdef"
START_S, COMMAND_S = 450.0, 300.0


def environment(auth_mode: str = "token", token: str = TOKEN) -> dict[str, str]:
    changes = {
        "RAY_AUTH_MODE": auth_mode,
        "RAY_AUTH_TOKEN": token,
        "RAY_raylet_start_wait_time_s": f"{START_S:g}",
        "PYTHONPATH": str(ROOT),
    }
    return os.environ | changes


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a Ray of its own that asks for a token and has a bus with one replica."""
    script = str(Path(__file__).with_name("bus_cluster.py"))
    process = subprocess.Popen(
        [sys.executable, script],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=START_S)


def millrace(*arguments: str, **access: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "millrace_tools.main", *arguments]
    return subprocess.run(
        command,
        env=environment(**access),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )


@pytest.mark.usefixtures("address")
def test_services_of_a_private_cluster_have_the_priority_of_its_command() -> None:
    """Ray's default leaves them nothing on a machine that does other things."""
    own = psutil.Process()
    processes = own.children(recursive=True)
    workers = [one for one in processes if one.cmdline()[:1] and "ray::" in one.cmdline()[0]]
    assert workers
    assert {one.nice() for one in workers} == {own.nice()}


def test_versions_are_shown_and_only_to_who_may_join_the_cluster(address: str) -> None:
    shown = millrace("versions", "--address", address)
    assert shown.returncode == 0, shown.stderr
    heading, first, second = shown.stdout.splitlines()
    assert heading.split()[:3] == ["version", "step", "base"]
    assert first.split()[:5] == ["4", "-", "-", "-", "1"]
    assert second.split()[:3] == ["5", "9", "4"]

    def intrude(auth_mode: str, token: str) -> subprocess.CompletedProcess:
        return millrace("versions", "--address", address, auth_mode=auth_mode, token=token)

    with ThreadPoolExecutor() as both:  # each waits until joining has its deadline
        intruders = list(both.map(intrude, ("disabled", "token"), ("", TOKEN[::-1])))
    for refused in intruders:
        assert refused.returncode in (1, 2), refused.stdout
        assert "version  step" not in refused.stdout
        assert refused.stderr.splitlines()[-1].startswith("error: "), refused.stderr


def test_an_operator_controls_a_replica_and_every_refusal_names_field_value_and_fix(
    address: str,
) -> None:
    def replica(*arguments: str) -> tuple[int, str]:
        done = millrace("replica", *arguments, "--address", address)
        return done.returncode, (done.stdout or done.stderr).strip()

    assert replica("r1", "pause") == (0, "r1: pause done in 0.25 s; it is paused")
    code, shown = replica()
    assert code == 0
    assert shown.splitlines()[1].split()[:4] == ["r1", "paused", "4", "no"]
    assert replica("r1", "sleep") == (2, "error: action: 'sleep' -> Only engines on GPUs can.")
    assert replica("r9", "pause") == (2, "error: replica: 'r9' -> Use one of: r1.")


def test_the_doctor_has_every_node_look_at_itself(address: str) -> None:
    done = millrace("doctor", "--cluster", "--address", address)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    (node,) = told["nodes"]
    assert node["facts"]["python"] == platform.python_version()
    assert told["cluster"]["nodes"]["found"] == "1 nodes"
    assert told["cluster"]["clocks"]["grade"] == "good", "one clock agrees with itself"
    assert done.returncode == (0 if told["healthy"] else 1), done.stderr


def test_an_unknown_action_is_refused_without_a_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replica", "r1", "explode"]) == 2
    assert "error: action: 'explode' -> Use one of abort, pause" in capsys.readouterr().err
    assert main(["replica", "r1", "pause", "--level", "1"]) == 2
    assert main(["replica", "r1"]) == 2


def test_an_address_where_nothing_listens_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], closed_url: str
) -> None:
    address = closed_url.removeprefix("http://")
    assert main(["versions", "--address", address]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --address: {address!r} -> Nothing answers there")
    assert main(["versions", "--address", "nonsense"]) == 2


def test_the_newest_failure_of_a_version_is_shown_below_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = tuple(
        VersionOutcome(replica_id="r1", at=1e9 + at, error=error)
        for at, error in ((0, "stage: [digest] of bucket 0"), (1, "commit: late"), (2, None))
    )
    record = VersionRecord(
        version=3,
        train_step=3,
        digest="a" * 64,
        model="m",
        base=2,
        published_at=1e9,
        commits=1,
        failures=2,
        outcomes=outcomes,
    )
    show_versions([record], Console())
    _, row, failure = capsys.readouterr().out.splitlines()
    assert row.split()[-2:] == ["2", "a" * 12]
    assert failure.split(maxsplit=2)[2] == "r1: commit: late"
    show_versions([], Console())
    assert capsys.readouterr().out == "No versions yet.\n"
