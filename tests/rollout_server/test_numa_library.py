"""The stand-in for libnuma, with which vLLM's CPU build loads on a bare machine."""

import importlib.metadata
import platform
import subprocess
import sys

import pytest

from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine import engine_environment
from services.rollout_server.engine.vllm_patches import numa_library

CONFIG = RolloutServerConfig(model="models/any", served_model_name="any")
WITHOUT_LIBNUMA = """
import ctypes
real = ctypes.CDLL

class Bare(real):
    def __init__(self, name, *args, **options):
        if name == "libnuma.so.1":
            raise OSError("libnuma.so.1: cannot open shared object file")
        super().__init__(name, *args, **options)

ctypes.CDLL = Bare
"""
ENDS_S = 300


def _run(program: str) -> str:
    command = [sys.executable, "-c", WITHOUT_LIBNUMA + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_libnuma_vllms_kernels_load_and_are_told_that_there_is_no_numa():
    program = f"import os; os.environ.update({engine_environment.environment(CONFIG)!r})\n"
    said = _run(
        program
        + """
from vllm.platforms import current_platform
current_platform.import_kernels()
import torch
print("kernels", hasattr(torch.ops._C, "init_cpu_memory_env"))
with open("/proc/self/maps") as maps:
    print("system's", any("libnuma" in line and "memfd" not in line for line in maps))
from services.rollout_server.engine.vllm_patches import numa_library
(library,) = numa_library._kept
print("available", library.numa_available())
"""
    )
    assert said.splitlines() == ["kernels True", "system's False", "available -1"]


def test_the_machines_own_libnuma_comes_first_and_once():
    said = _run("""
own = object()
asked = []
ctypes.CDLL = lambda name: asked.append(name) or own
from services.rollout_server.engine.vllm_patches import numa_library
numa_library.provide()
numa_library.provide()
print(asked, numa_library._kept == [own])
""")
    assert said == "['libnuma.so.1'] True\n"


def test_vllm_calls_it_before_it_loads_kernels():
    (entry,) = importlib.metadata.entry_points(
        group="vllm.platform_plugins", name=numa_library.PLUGIN
    )
    assert entry.load() is numa_library.provide


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_machine_gets_a_library_of_its_own(machine):
    made = numa_library.stand_in(machine)
    assert made.startswith(b"\x7fELF")
    assert (made == numa_library.stand_in(platform.machine())) == (machine == platform.machine())
