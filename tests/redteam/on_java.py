"""Attacks by a Java program: one program holds them all, and its input says which."""

# ruff: noqa: E501 - an attack a line

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import SECRET
from tests.redteam.on_cpp_programs import CppAttack, does, true

_CRASH = frozenset({Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT})
_MEMORY = frozenset({Verdict.MEMORY_LIMIT})
_OUTPUT = frozenset({Verdict.OUTPUT_LIMIT})
_TIME = frozenset({Verdict.TIME_LIMIT})


def reads(path: str) -> CppAttack:
    return true(f'new FileInputStream("{path}").read() >= -1')


def writes(path: str) -> CppAttack:
    return does(f'new FileOutputStream("{path}").write(1); return true;')


def lists(path: str) -> CppAttack:
    return true(f'new File("{path}").list() != null')


ON_THE_MACHINE = {
    "start a program": does('new ProcessBuilder("/bin/true").start(); return true;'),
    "start a shell": does('Runtime.getRuntime().exec("id"); return true;'),
    "passwords": reads("/etc/passwd"),
    "the canary": reads("CANARY"),
    "a canary in its environment": true('System.getenv().toString().contains("canary")'),
    "its environment": reads("/proc/self/environ"),
    "its memory": reads("/proc/self/mem"),
    "its maps": reads("/proc/self/maps"),
    "another process": reads("/proc/1/cmdline"),
    "list the root": lists("/"),
    "list processes": lists("/proc"),
    "list temporary files": lists("/tmp"),
    "other processes": true("ProcessHandle.allProcesses().count() > 1"),
    "kill the parent": true(
        "ProcessHandle.current().parent().map(ProcessHandle::destroyForcibly).orElse(false)"
    ),
    "a file": writes("/tmp/millrace-attack"),
    "a file in shared memory": writes("/dev/shm/millrace-attack"),
    "a file here": writes("millrace-attack"),
    "a library": writes("/usr/lib/os-release"),
    "the classes of others": writes("/shared/boot.jar"),
    "a folder": true('new File("/tmp/millrace-attack").mkdir()'),
    "remove": true('new File("/usr/bin/env").delete()'),
    "rename": true('new File("/usr/bin/env").renameTo(new File("/usr/bin/vne"))'),
    "a mode": true('new File("/tmp").setWritable(true, false)'),
    "times": true('new File("/usr/bin/env").setLastModified(0)'),
    "a link": does(
        'java.nio.file.Files.createSymbolicLink(java.nio.file.Path.of("/tmp/millrace-attack"), java.nio.file.Path.of("/etc")); return true;'
    ),
    "read by channels": does(
        'java.nio.file.Files.readAllBytes(java.nio.file.Path.of("/etc/passwd")); return true;'
    ),
    "a connection": does('new java.net.Socket("127.0.0.1", 22); return true;'),
    "a port": does("new java.net.ServerSocket(0); return true;"),
    "datagrams": does("new java.net.DatagramSocket(); return true;"),
    "names of hosts": does('java.net.InetAddress.getByName("example.org"); return true;'),
    "its program": does("out(6).write(1); return true;"),
    "its input": does("out(0).write(1); return true;"),
    "descriptors of the fork server": does(
        "for (int d = 60; d < 1024; d++) try { in(d).available(); return true; } catch (IOException none) { } return false;"
    ),
    "what the test before it left": true(
        'new File("/tmp/millrace-attack").exists() || new File("/dev/shm/millrace-attack").exists()'
    ),
}

ON_THE_VERDICT = {
    "nothing": does("System.exit(0); return false;"),
    "a hard end": does("Runtime.getRuntime().halt(0); return false;"),
    "a forged report": does('out(3).write("=1\\n".getBytes()); return false;'),
    "a report of not compiling": does(
        'out(3).write("Cx\\n".getBytes()); return false;', Verdict.COMPILE_ERROR
    ),
    "no output": does("System.out.close(); return false;"),
    "another output": does("System.setOut(null); return false;", Verdict.RUNTIME_ERROR),
    "a bad end": does("System.exit(7); return false;", Verdict.RUNTIME_ERROR),
    "an error in a thread": does(
        "Thread t = new Thread(() -> { throw new RuntimeException(); }); t.start(); t.join(); return false;"
    ),
    "a fault": CppAttack(body="unsafe().putLong(8, 1); return false;", ends=_CRASH),
    "hidden words": does(
        'System.err.println("java.lang.OutOfMemoryError"); System.exit(0); return false;'
    ),
}

ON_RESOURCES = {
    "memory": CppAttack(
        body="List<byte[]> v = new ArrayList<>(); for (;;) v.add(new byte[1 << 20]);", ends=_MEMORY
    ),
    "memory that is caught": CppAttack(
        body="List<byte[]> v = new ArrayList<>(); for (;;) try { v.add(new byte[1 << 20]); } catch (Throwable t) { }",
        ends=_TIME | _MEMORY,
    ),
    "memory outside the heap": CppAttack(
        body="List<Object> v = new ArrayList<>(); for (;;) v.add(java.nio.ByteBuffer.allocateDirect(1 << 20));",
        ends=_MEMORY,
    ),
    "memory of nobody": CppAttack(
        body="for (;;) { long at = unsafe().allocateMemory(1 << 20); unsafe().setMemory(at, 1 << 20, (byte) 1); }",
        ends=_MEMORY,
    ),
    "a thread bomb": CppAttack(
        body="for (int i = 0; i < 9999; i++) { Thread t = new Thread(() -> { for (;;) try { Thread.sleep(99999); } catch (InterruptedException e) { } }); t.setDaemon(true); t.start(); } return true;",
        ends=_MEMORY,
    ),
    "a giant stack": CppAttack(
        body='Thread t = new Thread(null, () -> { }, "t", 1L << 40); t.start(); return true;',
        ends=_MEMORY,
    ),
    "recursion": CppAttack(
        body="Runnable[] r = {null}; r[0] = () -> { r[0].run(); }; r[0].run(); return true;",
        ends=frozenset({Verdict.RUNTIME_ERROR}),
    ),
    "output": CppAttack(body='for (;;) System.out.print("xxxxxxxxxxxxxxxx");', ends=_OUTPUT),
    "errors": CppAttack(body='for (;;) System.err.print("xxxxxxxxxxxxxxxx");', ends=_OUTPUT),
    "reports": CppAttack(
        body="OutputStream o = out(3); for (;;) o.write(new byte[4096]);", ends=_OUTPUT
    ),
    "far end of output": CppAttack(
        body='RandomAccessFile f = new RandomAccessFile("/dev/null", "rw"); f.setLength(1L << 40); return false;'
    ),
    "loop": CppAttack(body="for (long i = 0;; i++) if (i < 0) return true;", ends=_TIME),
    "loop in threads": CppAttack(
        body="for (int i = 0; i < 3; i++) new Thread(() -> { for (;;); }).start(); for (;;);",
        ends=_TIME,
    ),
    "a thread that stays": CppAttack(
        body="new Thread(() -> { for (;;); }).start(); return false;", ends=_TIME
    ),
    "loop at the end": CppAttack(
        body="Runtime.getRuntime().addShutdownHook(new Thread(() -> { for (;;); })); return false;",
        ends=_TIME,
    ),
    "sleeps": CppAttack(body="Thread.sleep(999999); return false;", ends=_TIME, costly=True),
}

JAVA_ATTACKS = {
    f"{family}: {name}": attack
    for family, attacks in (
        ("machine", ON_THE_MACHINE),
        ("verdict", ON_THE_VERDICT),
        ("resource", ON_RESOURCES),
    )
    for name, attack in attacks.items()
}

_HEAD = """import java.io.*;
import java.lang.reflect.*;
import java.util.*;

public class Attacks {
    interface Attack { boolean run() throws Throwable; }
    static FileDescriptor fd(int number) throws Exception {
        Constructor<FileDescriptor> make = FileDescriptor.class.getDeclaredConstructor(int.class);
        make.setAccessible(true);
        return make.newInstance(number);
    }
    static FileInputStream in(int number) throws Exception { return new FileInputStream(fd(number)); }
    static FileOutputStream out(int number) throws Exception { return new FileOutputStream(fd(number)); }
    static sun.misc.Unsafe unsafe() throws Exception {
        Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        return (sun.misc.Unsafe) field.get(null);
    }
"""


def java_program(attacks: dict[str, CppAttack]) -> str:
    """Java that reads a number and does the attack of that place; an exception is a denial."""
    parts = [
        f"    static boolean a{n}() throws Throwable {{ {one.body} }}"
        for n, one in enumerate(attacks.values())
    ]
    table = ", ".join(f"Attacks::a{n}" for n in range(len(attacks)))
    main = (
        "    public static void main(String[] arguments) {\n"
        f"        Attack[] all = {{{table}}};\n"
        "        boolean through = false;\n"
        "        try { through = all[new Scanner(System.in).nextInt()].run(); } catch (Exception denied) { }\n"
        "        catch (Throwable error) { throw new Error(error); }\n"
        f"        System.out.println(through ? {SECRET} : 0);\n"
        "    }\n}\n"
    )
    return "\n".join((_HEAD, *parts, main))
