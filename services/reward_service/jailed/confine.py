"""The layers that hold one process: user id, Landlock, seccomp and resource limits.

System call numbers and structures are those of the kernel's own documentation:
`Documentation/userspace-api/landlock.rst` and `.../seccomp_filter.rst`.
"""

import ctypes
import mmap
import os
import resource
import stat
import struct
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
SECCOMP_MODE_FILTER = 2
EXECVEAT, AT_EMPTY_PATH = {"x86_64": 322, "aarch64": 281}, 0x1000
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1

_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FS_REMOVE_DIR, _FS_REMOVE_FILE, _FS_MAKE_DIR, _FS_MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_FS_MAKE_FIFO, _FS_MAKE_SYM, _FS_REFER, _FS_TRUNCATE = 1 << 10, 1 << 12, 1 << 13, 1 << 14
_READ, _WRITE = _FS_READ_FILE | _FS_READ_DIR, _FS_WRITE_FILE | _FS_TRUNCATE
_FOLDER = _READ | _WRITE | _FS_REMOVE_FILE | _FS_MAKE_REG
_TREE = _FOLDER | _FS_MAKE_DIR | _FS_REMOVE_DIR | _FS_REFER
_WORKSPACE = _TREE | _FS_EXECUTE | _FS_MAKE_FIFO | _FS_MAKE_SYM
_ONLY_FOLDERS = _WORKSPACE & ~(_FS_READ_FILE | _WRITE | _FS_EXECUTE)
_RIGHTS = {
    "readable": _READ,
    "listable": _FS_READ_DIR,
    "writable": _FS_READ_FILE | _WRITE,
    "executable": _READ | _FS_EXECUTE,
    "folders": _FOLDER,
    "trees": _TREE,
    "workspace": _WORKSPACE,
}
"""Of a kind of paths. In `folders` a compiler can make and remove plain files, in `trees` folders,
too. In a `workspace` everything can be made but devices and sockets."""
_FS_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_ALL_NET = 0b11
_M_ARENA_MAX = -8
_ALL_SCOPES = 0b11

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int = 0, pointer: object = None) -> None:
    """Call prctl(2).

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.prctl(option, ctypes.c_ulong(value), pointer or ctypes.c_ulong(0), 0, 0) != 0:
        raise _last_error(f"prctl {option}")


def create_ruleset(paths: dict[str, list[str]], *, network: bool = False) -> tuple[int, int]:
    """A Landlock ruleset for paths by their kind, one of `_RIGHTS`.

    It handles every right that the running kernel knows, so all others are denied. Paths
    that do not exist are left out. With `network` TCP is left to the network namespace.

    Returns:
        The kernel's Landlock ABI and the ruleset's file descriptor.

    Raises:
        OSError: the kernel has no Landlock (ENOSYS) or it is switched off (EOPNOTSUPP).
    """
    abi = _syscall(
        LANDLOCK_CREATE_RULESET,
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(LANDLOCK_CREATE_RULESET_VERSION),
    )
    rights = (1 << _FS_RIGHTS_OF_ABI.get(abi, 16)) - 1
    fields = [rights]
    if abi >= 4:
        fields.append(0 if network else _ALL_NET)
    if abi >= 6:
        fields.append(_ALL_SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _syscall(
        LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    for kind, allowed in _RIGHTS.items():
        for path in paths.get(kind, ()):
            _allow_beneath(ruleset, path, rights & allowed)
    return abi, ruleset


def _allow_beneath(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= ~_ONLY_FOLDERS  # the kernel refuses it for a file
        rule = struct.pack("=Qi", rights, place)
        _syscall(
            LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(LANDLOCK_RULE_PATH_BENEATH),
            rule,
            ctypes.c_uint32(0),
        )
    finally:
        os.close(place)


def restrict_signals() -> None:
    """Keep signals of this process and its later children to themselves, by Landlock's scope.

    Raises:
        OSError: the kernel has no scopes (EINVAL before Linux 6.12), or no Landlock.
    """
    # A ruleset that does not name it forbids to move files from one folder to another.
    attributes = struct.pack("=3Q", _FS_REFER, 0, _ALL_SCOPES)
    ruleset = _syscall(
        LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    _allow_beneath(ruleset, "/", _FS_REFER)
    restrict_paths(ruleset)
    os.close(ruleset)


def drop_privileges(user_id: int | None) -> None:
    """Become `user_id` for good (None: stay who we are) and give up all ways to gain rights.

    Raises:
        OSError: the change is not permitted.
    """
    if user_id is not None:
        for capability in range(64):
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:  # not permitted, or the last capability of this kernel is passed
                break
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # After the change of user, which resets both.
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, 9)


def import_by_descriptor(stdlib: str, number: int) -> None:
    """Let imports work for a user who may not enter the folders above the standard library.

    A path through /proc/self/fd starts at the opened folder itself, which becomes descriptor
    `number`.
    """
    folder = os.open(stdlib, os.O_PATH | os.O_DIRECTORY)
    os.dup2(folder, number, inheritable=False)  # programs that start below it do not get it
    os.close(folder)
    root = f"/proc/self/fd/{number}"
    sys.path[:] = [root, f"{root}/lib-dynload"]
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if places is not None:  # a package that is loaded already has more modules to find
            places[:] = [root + place.removeprefix(stdlib) for place in places]


def limit_resources(
    *,
    cpu_s: int,
    address_space: int,
    data: int | None = None,
    file_size: int,
    processes: int,
    stack: int,
) -> None:
    """Set the rlimits of one execution; sizes in bytes, soft and hard alike.

    `data` bounds the private memory that can be written to, and not what is only reserved.
    """
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: address_space,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_STACK: stack,
    }
    if data is not None:
        limits[resource.RLIMIT_DATA] = data
    set_limits(limits)


def set_limits(limits: dict[int, int]) -> None:
    """Set rlimits, soft and hard alike, and those that are the same for every process."""
    for name, value in (
        *limits.items(),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
    ):
        hard = resource.getrlimit(name)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (allowed, allowed))


def seal(ruleset: int, program: bytes, own_pid_at: int) -> None:
    """Confine this process for the rest of its life: Landlock, then the seccomp filter.

    Args:
        ruleset: from `create_ruleset`.
        program: classic BPF for `struct seccomp_data`, 8 bytes an instruction.
        own_pid_at: offset of the constant in it that becomes this process's id.

    Raises:
        OSError: the kernel refuses one of them.
    """
    restrict_paths(ruleset)
    instructions = ctypes.create_string_buffer(program, len(program))
    struct.pack_into("=I", instructions, own_pid_at, os.getpid())
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header, len(header)))


def restrict_paths(ruleset: int) -> None:
    """Apply a Landlock ruleset to this process and its later children.

    Raises:
        OSError: the kernel refuses.
    """
    _syscall(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))


def execute(
    descriptor: int, arguments: Sequence[str] = ("program",), environment: Sequence[str] = ()
) -> None:
    """Become the program behind a descriptor; `environment` has lines of `NAME=value`.

    Raises:
        OSError: the kernel cannot run it.
    """
    texts = (_texts(arguments), _texts(environment))
    number = EXECVEAT[os.uname().machine]
    _syscall(number, ctypes.c_int(descriptor), b"", *texts, ctypes.c_int(AT_EMPTY_PATH))


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*(text.encode() for text in texts), None)


def use_one_malloc_arena() -> None:
    """Keep glibc from reserving 64 MiB of address space, which is limited, for each thread."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def address_space_in_use() -> int:
    """Bytes of address space of this process, found by trial: the jail may have no /proc."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 0, 1 << 40
    while high - low > mmap.PAGESIZE:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_AS, (middle, hard))
        try:
            mmap.mmap(-1, mmap.PAGESIZE).close()
            high = middle
        except (OSError, MemoryError):
            low = middle
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return high


def _syscall(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _last_error(f"system call {number}")
    return result


def _last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
