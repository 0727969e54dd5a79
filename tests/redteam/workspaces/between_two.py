"""What a workspace might do to its neighbour on the same node, or learn of it."""

# ruff: noqa: E501 - an attack a line

from tests.redteam.workspaces.attacks import does, finds

NEIGHBOUR_SECRET = "neighbour-5c81"
"""In a file of the neighbour's, in its environment, its memory and the command line of its call."""

NEIGHBOUR = """
import mmap, os, socket, tempfile, time
secret = "neighbour-" + "5c81"
open("secret", "w").write(secret)
os.environ["SECRET"] = secret
shared = mmap.mmap(-1, 4096)
shared.write(secret.encode())
kept = []
for name in ("\\0millrace-neighbour", tempfile.gettempdir() + "/neighbour.sock"):
    try:
        one = socket.socket(socket.AF_UNIX)
        one.bind(name)
        one.listen()
        kept.append(one)
    except OSError:
        pass
try:
    one = socket.socket()
    one.bind(("127.0.0.1", 18519))
    one.listen()
    kept.append(one)
except OSError:
    pass
open(tempfile.gettempdir() + "/neighbour-is-here", "w").close()
print("ready", flush=True)
deadline = time.monotonic() + 3600
while not os.path.exists("stop") and time.monotonic() < deadline:
    time.sleep(0.02)
print("unharmed", open("secret").read() == secret)
"""
"""Runs beside every attack until a file says that it may stop, and then looks at itself."""

LOOKS = {
    "its file anywhere": finds(
        "[p for p in glob.glob('/**/secret', recursive=True) if os.path.isfile(p) and not p.startswith('/proc') and 'neighbour-5c' + '81' in open(p, errors='replace').read()]"
    ),
    "its mark among temporary files": finds("os.path.exists('/tmp/neighbour-is-here')"),
    "its processes": finds(
        "any('neighbour' + '-' in open(p, errors='replace').read() for p in glob.glob('/proc/[0-9]*/cmdline'))"
    ),
    "its environment": finds(
        "any('neighbour-5c' + '81' in open(p, errors='replace').read() for p in glob.glob('/proc/[0-9]*/environ') if os.access(p, os.R_OK))"
    ),
    "its root": finds(
        "any(os.path.exists(p + '/tmp/neighbour-is-here') for p in glob.glob('/proc/[0-9]*/root'))"
    ),
    "its folder": finds(
        "any(os.path.exists(p + '/secret') for p in glob.glob('/proc/[0-9]*/cwd'))"
    ),
    "its files by descriptor": finds(
        "any(p for p in glob.glob('/proc/[0-9]*/fd/*') if 'neighbour' in os.readlink(p))"
    ),
    "its abstract socket": does(
        "one = socket.socket(socket.AF_UNIX)\none.connect('\\0millrace-neighbour')"
    ),
    "its socket file": does(
        "one = socket.socket(socket.AF_UNIX)\none.connect('/tmp/neighbour.sock')"
    ),
    "its port": does("one = socket.socket()\none.settimeout(2)\none.connect(('127.0.0.1', 18519))"),
    "the host's port": does(
        "one = socket.socket()\none.settimeout(2)\none.connect(('127.0.0.1', {host_port}))"
    ),
    "the network": does(
        "one = socket.socket()\none.settimeout(2)\none.connect(('{host_address}', {host_port}))"
    ),
    "a name of the network": does(
        "socket.getaddrinfo('localhost', 80)[0]\nsocket.create_connection(('localhost', {host_port}), 2)"
    ),
    "interfaces": finds("[name for _, name in socket.if_nameindex() if name != 'lo']"),
    "shared memory by key": finds(
        "[key for key in range(0x5c81, 0x5c91) if libc.shmget(key, 0, 0) >= 0]"
    ),
    "shared memory files": finds(
        "os.path.isdir('/dev/shm') and [n for n in os.listdir('/dev/shm') if 'neighbour' in n]"
    ),
    "message queues": finds("libc.syscall(240, b'neighbour', 0, 0, None) >= 0"),
    "semaphores": finds("libc.syscall(64, 0x5c81, 0, 0) >= 0"),
    "its keys": finds(
        "libc.syscall(250, 10, b'user', b'neighbour', 0) >= 0 or libc.syscall(249, b'user', b'neighbour', None, 0) >= 0"
    ),
    "keys of the session": finds("libc.syscall(250, 0, -3, 1) >= 0"),
    "watch files that both read": finds(
        "libc.syscall(294, 0) >= 0 or libc.syscall(300, 0, 0) >= 0"
    ),
    "lease a file that both read": does(
        "fd = os.open(os.__file__, os.O_RDONLY)\nfcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)"
    ),
    "be told of a folder's changes": does(
        "fd = os.open('/usr', os.O_RDONLY)\nfcntl.fcntl(fd, 1026, 1)"
    ),
    "perf events": finds("libc.syscall(298, ctypes.create_string_buffer(128), -1, 0, -1, 0) >= 0"),
    "how much memory others share": finds(
        "libc.sysinfo(buffer := ctypes.create_string_buffer(128)) == 0 and struct.unpack_from('=Q', buffer, 48)[0]"
    ),
    "mounts of the host": finds(
        "'upperdir' in open('/proc/self/mountinfo').read() or 'millrace' in open('/proc/self/mountinfo').read()"
    ),
}
"""Each prints the mark if it learns of the neighbour or of the host."""

DOCUMENTED = {
    "lock a file that both read": does(
        "fd = os.open(os.__file__, os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    ),
    "lock a part of it": does(
        "fd = os.open(os.__file__, os.O_RDONLY)\nfcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)"
    ),
    "the name of the host": finds("'{host_name}' in (os.uname().nodename, socket.gethostname())"),
}
"""What docs/give-your-agent-a-sandbox.md says that a workspace can learn."""

HARMS = {
    "kill everybody": "import os\nos.kill(-1, 9)",
    "kill all numbers": "import os\nfor n in range(2, 1 << 16):\n    try: os.kill(n, 9)\n    except OSError: pass",
    "kill the host's numbers": "import os\nfor n in {host_pids}:\n    try: os.kill(n, 9)\n    except OSError: pass",
    "stop the host's numbers": "import os, signal\nfor n in {host_pids}:\n    try: os.kill(n, signal.SIGSTOP)\n    except OSError: pass",
    "trace the host's numbers": "import ctypes\nlibc = ctypes.CDLL(None)\nfor n in {host_pids}:\n    if libc.ptrace(16, n, None, None) == 0: print('attack-got' + '-through')",
    "read the host's numbers": "import ctypes\nlibc = ctypes.CDLL(None)\nfor n in {host_pids}:\n    if libc.syscall(310, n, None, 0, None, 0, 0) >= 0: print('attack-got' + '-through')",
    "limits of the host's numbers": "import ctypes, struct\nlibc = ctypes.CDLL(None)\nfor n in {host_pids}:\n    if libc.syscall(302, n, 7, struct.pack('=2Q', 3, 3), None) == 0: print('attack-got' + '-through')",
    "every process of its user": "import os, time\nfor _ in range(999):\n    try:\n        if os.fork() == 0: time.sleep(1); os._exit(0)\n    except OSError: break\ntime.sleep(0.5)",
    "slower for everybody": "import os\ntry: os.nice(-20)\nexcept OSError: pass\ntry: os.setpriority(os.PRIO_USER, 0, 19)\nexcept OSError: pass",
}
"""The neighbour runs beside each of them, and answers after it as before."""
