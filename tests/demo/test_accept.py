"""`millrace accept` as a user runs it: it reports, and it leaves nothing behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace_tools.accept.report import Report, Verdict
from tests.demo.test_demo import ROOT, _nothing_is_left

nothing_is_left = _nothing_is_left
ACCEPT_S = 1500
pytestmark = pytest.mark.timeout(1700)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """The command with some stages, which is interrupted if it has not ended by itself."""
    started = []
    words = ["-m", "millrace_tools.main", "accept", "--quick", "--output", str(tmp_path)]

    def begin(*own: str) -> "subprocess.Popen[str]":
        accept = subprocess.Popen(
            [sys.executable, *words, *own], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        started.append(accept)
        return accept

    yield begin
    for accept in started:
        if accept.poll() is None:
            accept.send_signal(signal.SIGINT)
            accept.communicate(timeout=ACCEPT_S)


@pytest.mark.slow
def test_a_machine_without_gpus_is_accepted(start, tmp_path: Path) -> None:
    accept = start("--json", "--stage", "device-to-device", "--stage", "push-gloo")
    said, _ = accept.communicate(timeout=ACCEPT_S)
    assert accept.returncode == 0, said
    report = Report.model_validate_json(said)
    assert report == Report.read(tmp_path / "accept.json")
    stages = {one.name: one for one in report.stages}
    assert list(stages) == ["device-to-device", "services", "push-gloo"]
    if not report.hardware.gpus:
        assert stages["device-to-device"].verdict is Verdict.NOT_TRIED
    figures = {one.name: one.value for one in stages["push-gloo"].figures}
    assert figures["versions"] == figures["digests"] == 2
    assert "push-gloo" in (tmp_path / "accept.html").read_text(encoding="utf-8")


def test_ctrl_c_leaves_a_report_of_the_stages_before_and_nothing_else(
    start, tmp_path: Path
) -> None:
    accept = start("--stage", "disk", "--stage", "kill")
    assert accept.stdout is not None
    assert accept.stdout.readline().split()[:2] == ["passed", "disk"]
    accept.send_signal(signal.SIGINT)  # while the services start
    accept.communicate(timeout=ACCEPT_S)
    assert accept.returncode == 130
    stages = json.loads((tmp_path / "accept.json").read_text())["stages"]
    assert [one["name"] for one in stages] == ["disk"]
