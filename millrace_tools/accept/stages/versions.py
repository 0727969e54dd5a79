"""Stages about what is installed: versions and drivers, and the sandbox's tier."""

import asyncio
import platform
from collections.abc import Sequence
from pathlib import Path

import psutil

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure, Hardware
from millrace_tools.accept.stage import Outcome, Stage
from millrace_tools.doctor import across, checks, probes
from millrace_tools.doctor.gpu_probe import gpus
from services.reward_service.config import cores_here

GIB = 1 << 30
_CPUS = Path("/proc/cpuinfo")


def hardware_here() -> Hardware:
    """This machine."""
    found = gpus().seen
    return Hardware(
        cpu=_processor(),
        cores=cores_here(),
        memory_gib=round(psutil.virtual_memory().total / GIB, 1),
        gpus=tuple(one.name for one in found),
        gpu_gib=min((round(one.memory_mib / 1024, 1) for one in found), default=None),
        driver=found[0].driver if found else "",
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
    )


def _processor() -> str:
    """The name that the kernel gives it; that of the architecture where it gives none."""
    try:
        lines = _CPUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def versions(bench: Bench, deadline: Deadline) -> Outcome:
    """Python, packages and drivers; with an address the same ones on every node."""
    machine = probes.observe(str(bench.folder))
    figures = [Figure(name="Python", value=machine.python)]
    figures += [Figure(name=one.name, value=one.installed or "none") for one in machine.packages]
    if machine.gpus.seen:
        figures.append(Figure(name="driver", value=machine.gpus.seen[0].driver))
    checked = (checks.python, checks.packages, checks.gpus)
    findings = [check(machine) for check in checked]
    if bench.address is not None:
        from millrace_tools.doctor.nodes import look_at_nodes  # imports Ray

        nodes = look_at_nodes(bench.address, str(bench.folder))
        figures.append(Figure(name="nodes", value=len(nodes)))
        findings += [across.answers(nodes), across.versions(nodes)]
    return Outcome(figures=tuple(figures), problem="; ".join(_faults(findings)))


def _faults(findings: Sequence[checks.Finding]) -> list[str]:
    return [f"{one.found}: {one.fix}" for one in findings if one.grade is checks.Grade.FAULT]


def sandbox(bench: Bench, deadline: Deadline) -> Outcome:
    """The reward service's own start-up check, which attacks the sandbox from inside."""
    found = asyncio.run(asyncio.wait_for(probes.sandbox(), deadline.left_s("the sandbox")))
    if not found.tier:
        return Outcome(problem=f"no sandbox holds here: {'; '.join(found.complaints)}")
    figures = [Figure(name="tier", value=found.tier)]
    if found.complaints:
        figures.append(Figure(name="no tier A", value="; ".join(found.complaints)))
    return Outcome(figures=tuple(figures))


STAGES = (
    Stage(
        name="versions",
        purpose="Python, Ray, engine, torch and drivers go together",
        deadline_s=180.0,
        run=versions,
    ),
    Stage(
        name="sandbox",
        purpose="the sandbox for untrusted code withstands the attacks of its start-up check",
        deadline_s=120.0,
        run=sandbox,
    ),
)
