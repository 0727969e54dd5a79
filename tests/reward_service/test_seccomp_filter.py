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
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.isolation.system_calls import (
    COMPILER,
    GUARDED,
    GUARDED_IN_WORKSPACE,
    NETWORK,
    PLAIN,
    SETS,
    UNSUPPORTED,
)
from services.reward_service.isolation.system_calls import WORKSPACE as WORKSPACE_CALLS
from services.reward_service.languages import languages

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
        elif code == 0xA4:
            accumulator ^= k
        elif code == 0x74:
            accumulator >>= k
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
    return build_filter(machine="x86_64").program


def test_only_listed_calls_are_allowed(x86: bytes) -> None:
    allowed = {n for n in range(1024) if act(x86, n) == ALLOW}
    plain = {numbers[0] for numbers in PLAIN.values()}
    denied_with_zeros = {"clone", "clone3", "ioctl", "prctl", "kill", "tgkill"}
    guarded = {numbers[0] for name, numbers in GUARDED.items() if name not in denied_with_zeros}
    assert allowed == plain | guarded


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
    built = build_filter(machine="x86_64")
    program = bytearray(built.program)
    struct.pack_into("=I", program, built.own_pid_at, 4242)
    kill = GUARDED["kill"][0]
    assert act(bytes(program), kill, 4242, 9) == ALLOW
    for target in (0, 1, 4241, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        assert act(bytes(program), kill, target, 9) == EPERM


def clock_of(process: int, kind: int = 2) -> int:
    """As clock_getcpuclockid(3) makes it."""
    return (~process << 3 | kind) & 0xFFFFFFFF


@pytest.mark.parametrize("call", ["clock_gettime", "clock_getres", "clock_nanosleep"])
def test_a_process_may_read_the_clocks_of_the_machine_and_its_own(call: str) -> None:
    built = build_filter(machine="x86_64")
    program = bytearray(built.program)
    struct.pack_into("=I", program, built.own_pid_at, 4242)
    for clock in (*range(12), *(clock_of(0, kind) for kind in (0, 1, 2, 4, 5, 6)), clock_of(4242)):
        assert act(bytes(program), GUARDED[call][0], clock) == ALLOW, clock
    for process in (1, 2, 4241, 4243, 1 << 22):
        for kind in range(8):
            assert act(bytes(program), GUARDED[call][0], clock_of(process, kind)) == EPERM


CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep")
OF_A_PROCESS = (
    *("getpgid", "getsid", "sched_getparam", "sched_getscheduler"),
    "sched_getaffinity",
)
WORKSPACE = build_filter("workspace", "x86_64").program
WITH_NETWORK = build_filter("workspace with a network", "x86_64").program
UNSUPPORTED_CALL = 0x50000 | errno.EOPNOTSUPP
OF_SOCKETS = {"socket": 41, "connect": 42, "bind": 49, "listen": 50, "accept4": 288}


def number_of(call: str) -> int:
    (found,) = (
        places[0]
        for calls in (PLAIN, COMPILER, WORKSPACE_CALLS, NETWORK, GUARDED, GUARDED_IN_WORKSPACE)
        for name, places in calls.items()
        if name == call
    )
    return found


def test_a_workspace_has_the_calls_of_a_compiler_and_of_a_shell_and_no_others() -> None:
    allowed = {n for n in range(1024) if act(WORKSPACE, n) == ALLOW}
    listed = PLAIN | COMPILER | WORKSPACE_CALLS
    # With zeros as arguments: a fork, a signal to its own group, its own clocks and limits.
    with_zeros = {"clone", "kill", "tgkill", "fcntl", "prlimit64", *CLOCKS, *OF_A_PROCESS}
    wanted = {places[0] for name, places in listed.items() if name != "sysinfo"}
    assert allowed == wanted | {GUARDED[name][0] for name in with_zeros}


@pytest.mark.parametrize(
    ("call", "args", "action"),
    [
        ("fork", (), ALLOW),
        ("clone", (0x01200011,), ALLOW),
        ("clone", (0x10000000,), EPERM),  # CLONE_NEWUSER
        ("clone", (0x00020000,), EPERM),  # CLONE_NEWNS
        ("execve", (), ALLOW),
        ("kill", (1, 9), ALLOW),  # the jail says how far it reaches
        ("kill", (0xFFFFFFFFFFFFFFFF, 9), ALLOW),
        ("fcntl", (0, 6), ALLOW),  # F_SETLK
        ("fcntl", (0, 8), EPERM),  # F_SETOWN
        ("fcntl", (0, 1031), EPERM),  # F_SETPIPE_SZ
        ("ioctl", (0, 0x5421), ALLOW),  # FIONBIO
        ("ioctl", (0, 0x5412), EPERM),  # TIOCSTI
        ("prctl", (1,), ALLOW),  # PR_SET_PDEATHSIG
        ("prctl", (4,), EPERM),  # PR_SET_DUMPABLE
        ("prctl", (22,), EPERM),  # PR_SET_SECCOMP
        ("prctl", (36,), EPERM),  # PR_SET_CHILD_SUBREAPER
        ("prlimit64", (0, 7, 1), ALLOW),
        ("prlimit64", (1, 7, 1), EPERM),  # of another process of the same user
        ("socketpair", (1, 1), ALLOW),
        ("socketpair", (1, 0o2000001), ALLOW),
        ("socketpair", (1, 2), EPERM),  # datagrams, which can be sent to an address
        ("socketpair", (2, 1), EPERM),
        ("sysinfo", (), EPERM),
    ],
)
def test_what_a_workspace_may_do_depends_on_arguments(
    call: str, args: tuple[int, ...], action: int
) -> None:
    assert act(WORKSPACE, number_of(call), *args) == action


@pytest.mark.parametrize(
    "number",
    [
        *(101, 310, 311, 438),  # ptrace, process_vm_readv, process_vm_writev, pidfd_getfd
        *(165, 166, 155, 161, 272, 308),  # mount, umount2, pivot_root, chroot, unshare, setns
        *(
            319,
            323,
            321,
            425,
            298,
            250,
        ),  # memfd_create, userfaultfd, bpf, io_uring_setup, perf, keyctl
        *(29, 240, 64, 68),  # shmget, mq_open, semget, msgget: memory that no limit counts
        *(
            105,
            106,
            117,
            141,
            424,
            129,
        ),  # setuid, setgid, setresuid, setpriority, pidfd_send_signal
        *(137, 138, 246, 169, 173),  # statfs, fstatfs, kexec_load, reboot, ioperm
    ],
)
def test_a_workspace_never_makes_these_calls(number: int) -> None:
    for program in (WORKSPACE, WITH_NETWORK):
        assert act(program, number) == EPERM


def test_attributes_of_files_look_unsupported_in_a_workspace() -> None:
    for numbers in UNSUPPORTED.values():
        assert act(WORKSPACE, numbers[0]) == UNSUPPORTED_CALL


def test_only_a_workspace_with_a_network_has_sockets_and_those_of_tcp_alone() -> None:
    for number in OF_SOCKETS.values():
        assert act(WORKSPACE, number, 2, 1) == EPERM
        assert act(WITH_NETWORK, number, 2, 1) == ALLOW
    for family, kind in ((1, 1), (2, 2), (2, 3), (16, 3), (17, 3), (10, 2), (40, 1)):
        assert act(WITH_NETWORK, OF_SOCKETS["socket"], family, kind) == EPERM
    setsockopt = 54
    assert act(WITH_NETWORK, setsockopt, 3, 6, 1) == ALLOW  # TCP_NODELAY
    assert act(WITH_NETWORK, setsockopt, 3, 1, 26) == EPERM  # SO_ATTACH_FILTER
    assert act(WITH_NETWORK, setsockopt, 3, 6, 31) == EPERM  # TCP_ULP
    assert act(WORKSPACE, setsockopt, 3, 6, 1) == EPERM


@pytest.mark.parametrize("program", [WORKSPACE, WITH_NETWORK])
def test_another_convention_ends_the_process_or_the_call(program: bytes) -> None:
    assert act(program, 1, arch=0x40000003) == KILL
    assert act(program, 0x40000001) == EPERM


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        ("getpgid", EPERM),
        ("getsid", EPERM),
        ("sched_getparam", EPERM),
        ("sched_getscheduler", EPERM),
        ("prlimit64", EPERM),
        ("sched_getaffinity", ENOSYS),
    ],
)
def test_a_process_may_ask_for_facts_of_itself_and_of_nobody_else(call: str, refusal: int) -> None:
    built = build_filter(machine="x86_64")
    program = bytearray(built.program)
    struct.pack_into("=I", program, built.own_pid_at, 4242)
    assert act(bytes(program), GUARDED[call][0], 0) == ALLOW
    for other in (1, 4241, 0xFFFFFFFF):
        assert act(bytes(program), GUARDED[call][0], other) == refusal
    if refusal == EPERM:
        assert act(bytes(program), GUARDED[call][0], 4242) == ALLOW


def test_no_answer_may_ask_how_much_memory_others_share() -> None:
    sysinfo, get_robust_list = 99, 274
    for role in ("answer", "program", "workspace"):
        program = build_filter(role, "x86_64").program
        assert act(program, sysinfo) == act(program, get_robust_list) == EPERM


def test_a_set_adds_its_calls_and_no_other() -> None:
    """Each set alone; no program of any language may open a socket, or start a process."""
    plain = build_filter("program", "x86_64").program
    before = {n for n in range(1024) if act(plain, n) == ALLOW}
    for name, calls in SETS.items():
        program = build_filter("program", "x86_64", sets=(name,)).program
        added = {n for n in range(1024) if act(program, n) == ALLOW} - before
        assert added == {numbers[0] for numbers in calls.values()}, name
    forbidden = {41, 42, 44, 46, 49, 50, 56, 57, 58, 59, 101, 165, 272, 319, 321, 425}
    for language in languages().values():
        sets = () if language.runtime is None else language.runtime.calls
        program = build_filter("program", "x86_64", private_memory=True, sets=sets).program
        assert {n for n in forbidden if act(program, n) == ALLOW} == set(), language.name


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_where_the_address_space_is_large_no_memory_escapes_the_limit_of_data(machine: str) -> None:
    column, arch = {"x86_64": (0, X86), "aarch64": (1, ARM)}[machine]
    number = PLAIN["mmap"][column]
    assert number is not None
    for sets in ((), *((name,) for name in SETS), tuple(SETS)):
        program = build_filter("program", machine, private_memory=True, sets=sets).program
        for flags, action in (
            (0x22, ALLOW),  # private and anonymous
            (0x02, ALLOW),  # private, of a file
            (0x01, ALLOW),  # a file, shared: it has limits of its own
            (0x4022, ALLOW),  # without reserve
            (0x21, EPERM),  # anonymous and shared
            (0x23, EPERM),  # the same, validated
            (0x122, EPERM),  # a stack that grows
        ):
            assert act(program, number, 0, 4096, 3, flags, arch=arch) == action, hex(flags)


def test_another_architectures_calls_end_the_process(x86: bytes) -> None:
    assert act(x86, 0, arch=0x40000003) == KILL
    assert act(x86, 0x40000000, arch=X86) == EPERM  # the x32 convention
    arm = build_filter(machine="aarch64").program
    assert act(arm, 0, arch=X86) == KILL
    assert act(arm, PLAIN["read"][1] or 0, arch=ARM) == ALLOW


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="riscv64"):
        build_filter(machine="riscv64")


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    headers = {
        0: "#include <asm/unistd_64.h>",
        1: "#define __BITS_PER_LONG 64\n#define __ARCH_WANT_NEW_STAT\n"
        "#define __ARCH_WANT_SET_GET_RLIMIT\n#define __ARCH_WANT_SYS_CLONE3\n"
        "#define __ARCH_WANT_RENAMEAT\n"
        "#include <asm-generic/unistd.h>",
    }
    more = {name: numbers for calls in SETS.values() for name, numbers in calls.items()}
    for column, include in headers.items():
        kernel = _header_numbers(include)
        for name, numbers in (PLAIN | COMPILER | GUARDED | more).items():
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
