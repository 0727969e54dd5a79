"""Attacks on kernel, files and other processes, beside those of `tests/reward_service`."""

from tests.redteam.attack import SECRET, Attack, call, does, finds

_SHELLCODE = """import ctypes, mmap
def f():
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex({code!r}))
    run = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return {secret} if 0 <= run() < 1 << 20 else 0
"""


def machine_code(code: str) -> Attack:
    """Bytes of x86_64 that return a file descriptor in rax if they get through."""
    return Attack(code=_SHELLCODE.format(code=code, secret=SECRET))


SYSTEM_CALLS = {
    "clone a process": call("56, 17, None, None, None, None"),
    "clone sharing memory": call("56, 0x4111, None, None, None, None"),
    "clone a namespace": call("56, 0x10000000 | 17, None, None, None, None"),
    "clone3": call("435, struct.pack('=11Q', 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88"),
    "raw fork": call("57"),
    "raw vfork": call("58"),
    "execve": call("59, b'/bin/true', None, None"),
    "execveat of an opened program": call(
        "322, os.open(os.__file__, os.O_RDONLY), b'', 0, 0, 0x1000"
    ),
    "socketpair": call("53, 1, 1, 0, ctypes.create_string_buffer(8)"),
    "socket by x32 numbers": call("0x40000000 + 41, 2, 1, 0"),
    "packet socket": call("41, 17, 3, 0"),
    "socket to the hypervisor": call("41, 40, 1, 0"),
    "crypto socket": call("41, 38, 5, 0"),
    "multipath tcp": call("41, 2, 1, 262"),
    "write into the parent": call("311, os.getppid(), None, 0, None, 0, 0"),
    "take a descriptor of the parent": call("438, 3, 0, 0"),
    "compare with the parent": call("312, os.getppid(), os.getpid(), 2, 0, 0"),
    "signal the parent's thread": call("200, os.getppid(), 9"),
    "queue a signal to the parent": call("129, os.getppid(), 9, ctypes.create_string_buffer(128)"),
    "signal a thread group": call("234, os.getppid(), os.getppid(), 9"),
    "enter a namespace": call("308, 0, 0"),
    "pivot the root": call("155, b'/', b'/'"),
    "open a file system": call("430, b'tmpfs', 0"),
    "clone a mount": call("428, -100, b'/', 1"),
    "open by handle": call("304, -100, ctypes.create_string_buffer(128), 0"),
    "name a handle": call(
        "303, -100, b'/', ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0"
    ),
    "openat2": call("437, -100, b'/etc/passwd', struct.pack('=3Q', 0, 0, 0), 24"),
    "secret memory": call("447, 0"),
    "load a module": call("313, 0, b'', 0"),
    "load a kernel": call("246, 0, 0, None, 0"),
    "read the kernel's log": call("103, 10, None, 0"),
    "set the clock": call("227, 0, ctypes.create_string_buffer(16)"),
    "name the host": call("170, b'owned', 5"),
    "port access": call("173, 0, 1, 1"),
    "local descriptor table": call("154, 1, ctypes.create_string_buffer(16), 16"),
    "no address randomisation": call("135, 0x0040000"),
    "real-time priority": call("144, 0, 1, struct.pack('=i', 1)"),
    "other processors": call("203, 0, 8, ctypes.create_string_buffer(b'\\xff' * 8)"),
    "first at the disk": call("251, 1, 0, 1 << 13"),
    "message queue": call("240, b'millrace', 0o102, 0o600, None"),
    "system message queue": call("68, 0, 0o1600"),
    "semaphores": call("64, 0, 1, 0o1600"),
    "watch files": call("294, 0"),
    "watch the file system": call("300, 0, 0"),
    "asynchronous io": call("206, 1, ctypes.create_string_buffer(8)"),
    "add a key": call("248, b'user', b'x', b'y', 1, -3"),
    "listen to the filter": call("317, 1, 8, struct.pack('=HHIQ', 1, 0, 0, 0)"),
    "process group": call("109, 0, 0"),
    "lock a file for a neighbour to see": call("73, os.open(os.__file__, os.O_RDONLY), 6"),
    "splice": call("275, 0, None, 1, None, 1, 0"),
    "lock memory": call("151, 1"),
    "change a page's owner": call("279, os.getppid(), 0, None, None, None, 0"),
    "how much memory others share": call("99, ctypes.create_string_buffer(128)"),
    "processor time of the parent": call(
        "228, (~os.getppid() << 3) | 2, ctypes.create_string_buffer(128)"
    ),
    "is there a clock of the parent": call("229, (~os.getppid() << 3) | 2, None"),
    "sleep by the clock of the parent": call(
        "230, (~os.getppid() << 3) | 2, 0, ctypes.create_string_buffer(128), None"
    ),
    "process group of the parent": call("121, os.getppid()"),
    "session of the parent": call("124, os.getppid()"),
    "processors of the parent": call("204, os.getppid(), 128, ctypes.create_string_buffer(128)"),
    "scheduler of the parent": call("145, os.getppid()"),
    "priority of the parent": call("143, os.getppid(), ctypes.create_string_buffer(128)"),
    "limits of the parent": call("302, os.getppid(), 7, None, ctypes.create_string_buffer(128)"),
    "locks of the parent": call(
        "274, os.getppid(), ctypes.create_string_buffer(128), ctypes.create_string_buffer(128)"
    ),
    "machine code: socket": machine_code("b829000000bf02000000be0100000031d20f05c3"),
    "machine code: a 32-bit socket": machine_code("53b867010000bb02000000b90100000031d2cd805bc3"),
}

FILES = {
    "climb out of every descriptor": does(
        "for fd in range(64):\n    try: os.open('../../../../../../etc/passwd', 0, dir_fd=fd)\n"
        "    except OSError: continue\n    else: break\nelse: raise OSError"
    ),
    "climb through proc": does(
        "for fd in range(64):\n    try: open(f'/proc/self/fd/{fd}/../../../../etc/passwd')\n"
        "    except OSError: continue\n    else: break\nelse: raise OSError"
    ),
    "a socket or a pipe left open": finds(
        "[fd for fd in range(3, 1024) if ctypes.CDLL(None).fcntl(fd, 1) >= 0 and "
        "(stat.S_ISSOCK(os.fstat(fd).st_mode) or stat.S_ISFIFO(os.fstat(fd).st_mode))]"
    ),
    "read shadow": does("open('/etc/shadow')"),
    "read the hosts": does("open('/etc/hosts')"),
    "read keys": does("os.listdir('/root/.ssh')"),
    "list the root": does("os.listdir('/')"),
    "list home": does("os.listdir('/home')"),
    "list temporary files": does("os.listdir('/tmp')"),
    "read installed packages": does(
        "open(glob.glob(os.path.dirname(os.__file__) + '/site-packages/*')[0])"
    ),
    "read the first process": does("open('/proc/1/cmdline')"),
    "read its own memory": does("open('/proc/self/mem', 'rb')"),
    "read its own map": does("open('/proc/self/maps')"),
    "read symbols": does("open('/proc/kallsyms')"),
    "read the kernel's settings": does("open('/sys/kernel/mm/transparent_hugepage/enabled')"),
    "physical memory": does("open('/dev/mem', 'rb')"),
    "kernel messages": does("open('/dev/kmsg')"),
    "terminal": does("open('/dev/tty')"),
    "new terminal": does("os.openpty()"),
    "virtual machine": does("open('/dev/kvm')"),
    "file system driver": does("open('/dev/fuse')"),
    "remove the library": does("os.unlink(os.__file__)"),
    "rename the library": does("os.rename(os.__file__, os.__file__ + 'x')"),
    "link the library": does("os.link(os.__file__, '/tmp/linked')"),
    "point elsewhere": does("os.symlink('/etc/passwd', '/tmp/pointed')"),
    "cut the library": does("os.truncate(os.__file__, 0)"),
    "date the library": does("os.utime(os.__file__, (0, 0))"),
    "own the library": does("os.chown(os.__file__, os.getuid(), os.getgid())"),
    "mark the library": does("os.setxattr(os.__file__, 'user.x', b'1')"),
    "make a pipe file": does("os.mkfifo('/tmp/pipe')"),
    "make a device": does("os.mknod('/tmp/device', 0o20600, os.makedev(1, 1))"),
    "file without a name": does("os.open('/tmp', os.O_TMPFILE | os.O_RDWR, 0o600)"),
    "write to its input": does("os.write(0, b'x')"),
    "lengthen its input": does("os.ftruncate(0, 99)"),
    "unseal its input": does("fcntl.fcntl(0, 1033, 0)"),
    "ask for a lease": does("fcntl.fcntl(1, fcntl.F_SETLEASE, fcntl.F_WRLCK)"),
    "own a descriptor's signals": does("fcntl.fcntl(1, 15, b'\\x01\\0\\0\\0\\x01\\0\\0\\0')"),
    "canary in the environment": finds("'MILL' + 'RACE' in str(dict(os.environ)) + str(sys.argv)"),
    "canary in the first environment": finds(
        "b'MILLRACE' in b''.join(iter(lambda p=ctypes.POINTER(ctypes.c_char_p).in_dll("
        "ctypes.CDLL(None), 'environ'), i=iter(range(99)): p[next(i)] or b'', b''))"
    ),
    "canary on the disk": does("open(glob.glob('/tmp/**/canary', recursive=True)[0])"),
    "dynamic library of its own": does("ctypes.CDLL('/tmp/evil.so')"),
}
