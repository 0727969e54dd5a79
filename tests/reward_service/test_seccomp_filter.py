"""The filter is run here by a small interpreter of classic BPF, apart from the kernel."""

import errno
import re
import struct
import subprocess
from pathlib import Path

import pytest

from services.protocol.errors import InvalidInput
from services.reward_service.isolation.bpf import (
    JUMP,
    JUMP_EQUAL,
    LOAD,
    RETURN,
    Assembler,
    argument_at,
)
from services.reward_service.isolation.seccomp_filter import GUARDED, PLAIN, build_filter

X86, ARM = 0xC000003E, 0xC00000B7
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def act(program: bytes, number: int, *args: int, arch: int = X86) -> int:
    data = struct.pack("=iIQ6Q", number, arch, 0, *args, *[0] * (6 - len(args)))
    accumulator = at = 0
    while True:
        code, if_true, if_false, k = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x05:
            at += k
        elif code == 0x15:
            at += if_true if accumulator == k else if_false
        elif code == 0x35:
            at += if_true if accumulator >= k else if_false
        else:
            assert code == 0x06
            return k


@pytest.fixture(scope="module")
def x86() -> bytes:
    return build_filter("x86_64").program


def test_only_listed_calls_are_allowed(x86: bytes) -> None:
    allowed = {n for n in range(1024) if act(x86, n) == ALLOW}
    plain = {numbers[0] for numbers in PLAIN.values()}
    with_zero_arguments = {GUARDED["fcntl"][0], GUARDED["prlimit64"][0]}
    assert allowed == plain | with_zero_arguments


@pytest.mark.parametrize(
    ("call", "args", "action"),
    [
        ("clone", (0x003D0F00,), ALLOW),  # what pthread_create asks for
        ("clone", (0x01200011,), EPERM),  # what fork asks for
        ("clone", (0x00010000 | 0x10000000,), EPERM),
        ("clone3", (), ENOSYS),
        ("fcntl", (0, 1030), ALLOW),
        ("fcntl", (0, 8), EPERM),  # F_SETOWN
        ("fcntl", (0, 10), EPERM),  # F_SETSIG
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),  # TIOCSTI
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), EPERM),  # PR_SET_PDEATHSIG
        ("prlimit64", (0, 7, 0, 1), ALLOW),
        ("prlimit64", (0, 7, 1), EPERM),
        ("prlimit64", (0, 7, 1 << 32), EPERM),
        ("kill", (1,), EPERM),
        ("tgkill", (1, 1, 9), EPERM),
    ],
)
def test_arguments_decide_where_a_call_can_be_abused(
    x86: bytes, call: str, args: tuple[int, ...], action: int
) -> None:
    assert act(x86, GUARDED[call][0], *args) == action


def test_a_process_may_signal_itself_and_nobody_else() -> None:
    built = build_filter("x86_64")
    program = bytearray(built.program)
    struct.pack_into("=I", program, built.own_pid_at, 4242)
    kill = GUARDED["kill"][0]
    assert act(bytes(program), kill, 4242, 9) == ALLOW
    for target in (0, 1, 4241, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        assert act(bytes(program), kill, target, 9) == EPERM


def test_another_architectures_calls_end_the_process(x86: bytes) -> None:
    assert act(x86, 0, arch=0x40000003) == KILL
    assert act(x86, 0x40000000, arch=X86) == EPERM  # the x32 convention
    arm = build_filter("aarch64").program
    assert act(arm, 0, arch=X86) == KILL
    assert act(arm, PLAIN["read"][1] or 0, arch=ARM) == ALLOW


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="riscv64"):
        build_filter("riscv64")


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    headers = {
        0: "#include <asm/unistd_64.h>",
        1: "#define __BITS_PER_LONG 64\n#define __ARCH_WANT_NEW_STAT\n"
        "#define __ARCH_WANT_SET_GET_RLIMIT\n#define __ARCH_WANT_SYS_CLONE3\n"
        "#include <asm-generic/unistd.h>",
    }
    for column, include in headers.items():
        kernel = _header_numbers(include)
        for name, numbers in (PLAIN | GUARDED).items():
            if numbers[column] is not None:
                assert kernel[name] == numbers[column], name
            else:
                assert name not in kernel, name


def _header_numbers(include: str) -> dict[str, int]:
    if not Path("/usr/include/asm-generic/unistd.h").exists():
        pytest.skip("the kernel's headers are not installed")
    try:
        done = subprocess.run(
            ["cc", "-E", "-dM", "-"], input=include, capture_output=True, text=True, timeout=300
        )
    except FileNotFoundError:
        pytest.skip("there is no C preprocessor")
    if done.returncode:
        pytest.skip("the headers are another machine's")
    defined = dict(re.findall(r"#define (__NR\w+) (\w+)", done.stdout))
    numbers = {}
    for name, value in defined.items():
        while value in defined:
            value = defined[value]
        if name.startswith("__NR_") and value.isdigit():
            numbers[name.removeprefix("__NR_")] = int(value)
    return numbers


def test_the_assembler_refuses_jumps_it_cannot_encode() -> None:
    backwards = Assembler()
    backwards.label("here")
    backwards.add(LOAD, argument_at(0))
    backwards.add(JUMP, "here")
    with pytest.raises(ValueError, match="not ahead"):
        backwards.encode()
    far = Assembler()
    far.add(JUMP_EQUAL, 1, if_true="end")
    for _ in range(256):
        far.add(LOAD, argument_at(0, high=True))
    far.label("end")
    far.add(RETURN, ALLOW)
    with pytest.raises(ValueError, match="too long"):
        far.encode()
    with pytest.raises(ValueError, match="twice"):
        far.label("end")
