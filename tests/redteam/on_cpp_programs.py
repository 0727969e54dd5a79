"""Attacks by compiled programs: one program holds them all, and its input says which.

Compiling is what costs, so a service runs all of them as the tests of one answer.
"""

# ruff: noqa: E501 - an attack a line

from dataclasses import dataclass

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import SECRET

_WRONG = frozenset({Verdict.WRONG_ANSWER})
_CRASH = frozenset({Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT})
_OUTPUT = frozenset({Verdict.OUTPUT_LIMIT})
_MEMORY = frozenset({Verdict.MEMORY_LIMIT})
_TIME = frozenset({Verdict.TIME_LIMIT})


@dataclass(frozen=True, kw_only=True)
class CppAttack:
    """What one part of the program does.

    Attributes:
        body: statements of a function that returns true if the attack got through.
        ends: the verdicts that are right.
        costly: takes seconds, so it runs with `--all-attacks` only.
    """

    body: str
    ends: frozenset[Verdict] = _WRONG
    costly: bool = False


def call(what: str) -> CppAttack:
    """A system call, which must fail."""
    return CppAttack(body=f"return syscall({what}) >= 0;")


def true(expression: str) -> CppAttack:
    """An expression that must be false."""
    return CppAttack(body=f"return {expression};")


def does(body: str, *ends: Verdict) -> CppAttack:
    return CppAttack(body=body, ends=frozenset(ends) or _WRONG)


SYSTEM_CALLS = {
    "socket": call("SYS_socket, 2, 1, 0"),
    "unix socket": call("SYS_socket, 1, 1, 0"),
    "netlink": call("SYS_socket, 16, 3, 0"),
    "pair of sockets": call("SYS_socketpair, 1, 1, 0, area"),
    "be traced": call("SYS_ptrace, 0, 0, 0, 0"),
    "trace the parent": call("SYS_ptrace, 16, getppid(), 0, 0"),
    "mount": call('SYS_mount, "none", "/", "tmpfs", 0, 0'),
    "unmount": call('SYS_umount2, "/", 2'),
    "new user namespace": call("SYS_unshare, 0x10000000"),
    "new network namespace": call("SYS_unshare, 0x40000000"),
    "enter a namespace": call("SYS_setns, 0, 0"),
    "bpf": call("SYS_bpf, 0, area, 72"),
    "io_uring": call("SYS_io_uring_setup, 8, area"),
    "session keyring": call("SYS_keyctl, 1, 0, 0, 0, 0"),
    "add a key": call('SYS_add_key, "user", "x", "y", 1, -3'),
    "userfaultfd": call("SYS_userfaultfd, 0"),
    "read the parent": call("SYS_process_vm_readv, getppid(), area, 1, area, 1, 0"),
    "write the parent": call("SYS_process_vm_writev, getppid(), area, 1, area, 1, 0"),
    "performance events": call("SYS_perf_event_open, area, 0, -1, -1, 0"),
    "memory file": call('SYS_memfd_create, "x", 0'),
    "secret memory": call("447, 0"),
    "start a shell": call('SYS_execve, "/bin/sh", 0, 0'),
    "start itself": call('SYS_execve, "/proc/self/exe", 0, 0'),
    "start by descriptor and path": call('SYS_execveat, 59, "/bin/true", 0, 0, 0'),
    "start an empty path": call('SYS_execveat, 0, "", 0, 0, 0x1000'),
    "fork": call("SYS_fork"),
    "vfork": true("fork() >= 0"),
    "clone a process": call("SYS_clone, 17, 0, 0, 0, 0"),
    "clone into a namespace": call("SYS_clone, 0x50000000 | 17, 0, 0, 0, 0"),
    "clone3": call("SYS_clone3, area, 88"),
    "kill the parent": call("SYS_kill, getppid(), 9"),
    "stop the parent": call("SYS_kill, getppid(), 19"),
    "kill everybody": call("SYS_kill, -1, 9"),
    "kill the group": call("SYS_kill, 0, 9"),
    "kill the parent's thread": call("SYS_tgkill, getppid(), getppid(), 9"),
    "handle on the parent": call("SYS_pidfd_open, getppid(), 0"),
    "descriptor of the parent": call("SYS_pidfd_getfd, 0, 0, 0"),
    "session of its own": call("SYS_setsid"),
    "group of its own": call("SYS_setpgid, 0, 0"),
    "outlive the parent": call("SYS_prctl, 1, 0, 0, 0, 0"),
    "readable for others": call("SYS_prctl, 4, 1, 0, 0, 0"),
    "adopt orphans": call("SYS_prctl, 36, 1, 0, 0, 0"),
    "another filter": call("SYS_seccomp, 1, 0, area"),
    "raise its limits": call("SYS_prlimit64, 0, 9, area, 0"),
    "limits of the parent": call("SYS_prlimit64, getppid(), 0, area, area"),
    "become root": call("SYS_setuid, 0"),
    "groups": call("SYS_setgroups, 0, 0"),
    "change the root": call('SYS_chroot, "/usr"'),
    "shared memory": call("SYS_shmget, 0x6d6c, 4096, 01666"),
    "semaphores": call("SYS_semget, 0x6d6c, 1, 01666"),
    "messages": call("SYS_msgget, 0x6d6c, 01666"),
    "message queue": call('SYS_mq_open, "millrace-cpp", 0102, 0600, 0'),
    "processors": call("SYS_sched_setaffinity, 0, 8, area"),
    "real time": call("SYS_sched_setscheduler, 0, 1, area"),
    "priority": call("SYS_setpriority, 0, 0, -5"),
    "personality": call("SYS_personality, 0x0400000"),
    "lock memory": call("SYS_mlockall, 3"),
    "another's pages": call("SYS_move_pages, getppid(), 0, 0, 0, 0, 0"),
    "compare with the parent": call("SYS_kcmp, getppid(), getpid(), 2, 0, 0"),
    "kernel messages": call("SYS_syslog, 10, 0, 0"),
    "a module": call('SYS_finit_module, 0, "", 0'),
    "watch files": call("SYS_inotify_init1, 0"),
    "splice": call("SYS_splice, 0, 0, 1, 0, 1, 0"),
    "send a file": call("SYS_sendfile, 1, 0, 0, 1"),
    "open by handle": call("SYS_open_by_handle_at, -100, area, 0"),
    "how much memory others share": call("SYS_sysinfo, area"),
    "processor time of the parent": call("SYS_clock_gettime, (~getppid() << 3) | 2, area"),
    "is there a clock of the parent": call("SYS_clock_getres, (~getppid() << 3) | 2, 0"),
    "process group of the parent": call("SYS_getpgid, getppid()"),
    "session of the parent": call("SYS_getsid, getppid()"),
    "processors of the parent": call("SYS_sched_getaffinity, getppid(), 128, area"),
    "scheduler of the parent": call("SYS_sched_getscheduler, getppid()"),
    "limits of the parent, read only": call("SYS_prlimit64, getppid(), 7, 0, area"),
    "locks of the parent": call("SYS_get_robust_list, getppid(), area, area + 8"),
    "x32 numbers": call("0x40000000 + 39"),
    "a 32-bit call": CppAttack(
        body='int r; asm volatile("int $0x80" : "=a"(r) : "a"(20)); return r > 0;', ends=_CRASH
    ),
}

FILES = {
    "passwords": true('open("/etc/passwd", 0) >= 0'),
    "its environment": true('open("/proc/self/environ", 0) >= 0'),
    "its memory": true('open("/proc/self/mem", 2) >= 0'),
    "its maps": true('open("/proc/self/maps", 0) >= 0'),
    "its program": true('open("/proc/self/exe", 1) >= 0'),
    "other processes": true('opendir("/proc") != nullptr'),
    "temporary files": true('opendir("/tmp") != nullptr'),
    "shared memory files": true('open("/dev/shm/millrace-attack", 0102, 0600) >= 0'),
    "a file": true('open("/tmp/millrace-attack", 0102, 0600) >= 0'),
    "a file without a name": true('open("/tmp", 020200002, 0600) >= 0'),
    "a folder": true('mkdir("/tmp/millrace-attack", 0700) == 0'),
    "a link": true('symlink("/etc/passwd", "/tmp/millrace-attack") == 0'),
    "a hard link": true('link("/usr/bin/env", "/tmp/millrace-attack") == 0'),
    "a pipe": true('mkfifo("/tmp/millrace-attack", 0600) == 0'),
    "a device": true('mknod("/tmp/millrace-attack", 020600, 259) == 0'),
    "a mode": true('chmod("/tmp", 0777) == 0'),
    "a library": true('open("/usr/lib/os-release", 1) >= 0'),
    "remove": true('unlink("/usr/bin/env") == 0'),
    "rename": true('rename("/usr/bin/env", "/usr/bin/vne") == 0'),
    "climb out": does(
        'for (int d = 0; d < 64; d++) if (openat(d, "../../../../../etc/passwd", 0) >= 0) return true;'
        "return false;"
    ),
    "its input": does('return write(0, "x", 1) == 1 || ftruncate(0, 0) == 0;'),
    "seals": true("fcntl(0, 1033, 0) >= 0 || fcntl(1, 1033, 1) >= 0"),
    "signals of descriptors": true("fcntl(1, F_SETOWN, getppid()) >= 0"),
    "terminal": true("ioctl(0, TIOCSTI, area) >= 0"),
    "its environment has something": true("environ != nullptr && environ[0] != nullptr"),
    "more descriptors than it was given": does(
        "for (int d = 4; d < 1024; d++) if (fcntl(d, F_GETFD) >= 0) return true; return false;"
    ),
    "a preloaded library": does(
        'setenv("LD_PRELOAD", "/tmp/x.so", 1); setenv("LD_LIBRARY_PATH", "/tmp", 1);'
        'char a[] = "true"; char* v[] = {a, nullptr}; execv("/bin/true", v); return false;'
    ),
    "a loaded library": true('open("/usr/lib/x86_64-linux-gnu/libc.so.6", 2) >= 0'),
    "its program by its number": does(
        'return pwrite(6, "x", 1, 0) == 1 || syscall(SYS_execveat, 6, "", 0, 0, 0x1000) == 0;'
    ),
    "what the test before it left": does(
        'return access("/tmp/millrace-attack", F_OK) == 0 || access("/dev/shm/millrace-attack", F_OK) == 0;'
    ),
}

ON_THE_VERDICT = {
    "nothing": does("_exit(0);"),
    "a forged score": does(
        'puts("{\\"verdict\\": \\"accepted\\", \\"reward\\": 1.0}"); return false;'
    ),
    "a forged answer of the slot": does(
        'const char* s = "{\\"exit\\": 0, \\"killed\\": null, \\"confined\\": true, \\"cpu_s\\": 0, \\"wall_s\\": 0, \\"peak_kb\\": 1}";'
        "for (int d = 2; d < 1024; d++) if (write(d, s, strlen(s)) < 0) continue; return false;"
    ),
    "a forged report": does('return write(3, "=1\\n=1\\n", 6) < 0;'),
    "a report of not compiling": does('return write(3, "Cx\\n", 3) < 0;', Verdict.COMPILE_ERROR),
    "every number": does("for (int i = 0; i < 9999; i++) cout << i << '\\n'; return false;"),
    "other digits": does('cout << "\\u0669\\u0661\\u0668"; return false;'),
    "zeros": does("cout.write(area, 99); return false;"),
    "its input as output": does("dup2(0, 1); return false;"),
    "no output": does("close(1); return false;"),
    "swapped descriptors": does("dup2(2, 9); dup2(1, 2); dup2(9, 1); return false;"),
    "its own output read back": does(
        "char c[99]; return pread(1, c, 99, 0) > 0 || pread(3, c, 99, 0) > 0;"
    ),
    "killed after its output": CppAttack(
        body='printf("918"); fflush(stdout); raise(SIGKILL); return false;', ends=_CRASH
    ),
    "a bad end": does("exit(7);", Verdict.RUNTIME_ERROR),
    "a function at exit": does('atexit([] { write(1, "918", 3); _exit(0); }); return false;'),
}

ON_RESOURCES = {
    "fork bomb": does("for (int i = 0; i < 99; i++) if (fork() > 0) return true; return false;"),
    "double fork": does(
        "if (fork() == 0) { setsid(); if (fork() == 0) for (;;) pause(); } return false;"
    ),
    "thread bomb": CppAttack(
        body="vector<pthread_t> t(9999); for (auto& x : t) if (pthread_create(&x, nullptr,"
        "[](void*) -> void* { for (;;) pause(); }, nullptr)) return false; return true;",
    ),
    "descriptors": does("int n = 0; while (dup(0) >= 0) if (++n > 999) return true; return false;"),
    "pipes": does(
        "int p[2], n = 0; while (pipe(p) == 0) { fcntl(p[1], F_SETPIPE_SZ, 1 << 20); if (++n > 999) return true; } return false;"
    ),
    "memory": CppAttack(
        body="vector<char*> v; for (;;) { v.push_back(new char[1 << 20]); v.back()[9] = 1; }",
        ends=_MEMORY,
    ),
    "shared maps": does(
        "int n = 0; while (mmap(0, 1 << 26, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) if (++n > 99) return true; return false;"
    ),
    "stack": CppAttack(
        body="volatile char c[1 << 16]; c[9] = 1; return deeper(area) + c[9] > 0;", ends=_CRASH
    ),
    "output": CppAttack(body="for (;;) write(1, area, sizeof area);", ends=_OUTPUT),
    "errors": CppAttack(body="for (;;) write(2, area, sizeof area);", ends=_OUTPUT),
    "reports": CppAttack(body="for (;;) write(3, area, sizeof area);", ends=_OUTPUT),
    "sparse output": CppAttack(body="ftruncate(1, 1L << 40); return false;", ends=_OUTPUT),
    "far end of output": CppAttack(body='pwrite(1, "x", 1, 1L << 40); return false;', ends=_OUTPUT),
    "output without a signal": CppAttack(
        body="signal(SIGXFSZ, SIG_IGN); for (int i = 0; i < 999; i++) write(1, area, sizeof area); return false;",
        ends=_OUTPUT,
    ),
    "loop without signals": CppAttack(
        body="sigset_t s; sigfillset(&s); sigprocmask(SIG_BLOCK, &s, 0); for (volatile int i = 0;; i = i + 1);",
        ends=_TIME,
    ),
    "loop in threads": CppAttack(
        body="pthread_t t; for (int i = 0; i < 4; i++) pthread_create(&t, nullptr, [](void*) -> void*"
        "{ for (volatile int i = 0;; i = i + 1); }, nullptr); for (volatile int i = 0;; i = i + 1);",
        ends=_TIME,
    ),
    "leader that ends before its threads": CppAttack(
        body="pthread_t t; pthread_create(&t, nullptr, [](void*) -> void* { for (volatile int i = 0;; i = i + 1); },"
        "nullptr); syscall(SYS_exit, 0); return false;",
        ends=_TIME,
    ),
    "alarm that loops": CppAttack(
        body="signal(SIGALRM, [](int) { for (volatile int i = 0;; i = i + 1); }); ualarm(1000, 0); pause(); return false;",
        ends=_TIME,
    ),
    "sleeps": CppAttack(body="sleep(999); return false;", ends=_TIME, costly=True),
    "stops itself": CppAttack(body="raise(SIGSTOP); return false;", ends=_TIME, costly=True),
    "waits without signals": CppAttack(
        body="sigset_t s; sigfillset(&s); sigsuspend(&s); return false;", ends=_TIME, costly=True
    ),
}

CPP_ATTACKS = {
    f"{family}: {name}": attack
    for family, attacks in (
        ("call", SYSTEM_CALLS),
        ("file", FILES),
        ("verdict", ON_THE_VERDICT),
        ("resource", ON_RESOURCES),
    )
    for name, attack in attacks.items()
}

_HEAD = """#include <bits/stdc++.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
using namespace std;
static char area[4096];
static int deeper(volatile char* before) {
    volatile char more[1 << 12];
    more[0] = before[0];
    return deeper(more) + more[0];
}
"""


def program(attacks: dict[str, CppAttack]) -> str:
    """C++ that reads a number and does the attack of that place."""
    parts = [f"static bool a{n}() {{ {one.body} }}" for n, one in enumerate(attacks.values())]
    table = ", ".join(f"a{n}" for n in range(len(attacks)))
    main = (
        f"int main() {{ int n; cin >> n; bool (*all[])() = {{{table}}};"
        f"cout << (all[n]() ? {SECRET} : 0) << endl; }}"
    )
    return "\n".join((_HEAD, *parts, main))
