"""Attacks by a JavaScript program: one program holds them all, and its input says which."""

# ruff: noqa: E501 - an attack a line

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import SECRET
from tests.redteam.on_cpp_programs import CppAttack, does, true

_CRASH = frozenset({Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT})
_MEMORY = frozenset({Verdict.MEMORY_LIMIT})
_OUTPUT = frozenset({Verdict.OUTPUT_LIMIT})
_TIME = frozenset({Verdict.TIME_LIMIT})
_ANY_LIMIT = _CRASH | _TIME | {Verdict.WRONG_ANSWER}

ON_THE_MACHINE = {
    "start a program": true("cp.spawnSync('/bin/true').status === 0"),
    "start a shell": does("cp.execSync('true'); return true;"),
    "start itself": true("cp.spawn('/usr/bin/node').pid !== undefined"),
    "start by the binding": CppAttack(
        body="return process.binding('spawn_sync').spawn({ file: '/bin/true', args: [], stdio: [] }).status === 0;",
        ends=_CRASH | {Verdict.WRONG_ANSWER},
    ),
    "passwords": does("fs.readFileSync('/etc/passwd'); return true;"),
    "the canary": does("fs.readFileSync('CANARY'); return true;"),
    "a canary in its environment": true("JSON.stringify(process.env).includes('canary')"),
    "its environment": does("fs.readFileSync('/proc/self/environ'); return true;"),
    "its memory": does("fs.openSync('/proc/self/mem', 'r+'); return true;"),
    "its maps": does("fs.readFileSync('/proc/self/maps'); return true;"),
    "another process": does("fs.readFileSync('/proc/1/cmdline'); return true;"),
    "list the root": does("fs.readdirSync('/'); return true;"),
    "list processes": does("fs.readdirSync('/proc'); return true;"),
    "list temporary files": does("fs.readdirSync('/tmp'); return true;"),
    "a file": does("fs.writeFileSync('/tmp/millrace-attack', 'x'); return true;"),
    "a file in shared memory": does(
        "fs.writeFileSync('/dev/shm/millrace-attack', 'x'); return true;"
    ),
    "a file here": does("fs.writeFileSync('millrace-attack', 'x'); return true;"),
    "a folder": does("fs.mkdirSync('/tmp/millrace-attack'); return true;"),
    "a link": does("fs.symlinkSync('/etc/passwd', '/tmp/millrace-attack'); return true;"),
    "a hard link": does("fs.linkSync('/usr/bin/env', '/tmp/millrace-attack'); return true;"),
    "a mode": does("fs.chmodSync('/tmp', 0o777); return true;"),
    "remove": does("fs.unlinkSync('/usr/bin/env'); return true;"),
    "rename": does("fs.renameSync('/usr/bin/env', '/usr/bin/vne'); return true;"),
    "times": does("fs.utimesSync('/usr/bin/env', 0, 0); return true;"),
    "a library": does("fs.openSync('/usr/lib/os-release', 'r+'); return true;"),
    "its program": true("fs.writeSync(6, 'x') === 1"),
    "a shorter program": does("fs.ftruncateSync(6, 0); return true;"),
    "its input": true("fs.writeSync(0, 'x') === 1"),
    "descriptors of the fork server": does(
        "for (let d = 60; d < 1024; d++) try { fs.fstatSync(d); return true; } catch {} return false;"
    ),
    "a port": true("new (process.binding('tcp_wrap').TCP)(1).bind('127.0.0.1', 0) === 0"),
    "datagrams": true("new (process.binding('udp_wrap').UDP)().bind('127.0.0.1', 0, 0) === 0"),
    "the inspector": does(
        "const i = require('inspector'); i.open(0, '127.0.0.1', false); return i.url() !== undefined;"
    ),
    "watch files": does("fs.watch('/tmp'); return true;"),
    "kill the parent": does("process.kill(process.ppid, 9); return true;"),
    "kill everybody": does("process.kill(-1, 9); return true;"),
    "kill the group": does("process.kill(0, 9); return true;"),
    "debug the parent": does("process._debugProcess(process.ppid); return true;"),
    "become root": does("process.setuid(0); return true;"),
    "groups": does("process.setgroups([0]); return true;"),
    "priority": does("os.setPriority(-5); return true;"),
    "another folder": does("process.chdir('/tmp'); return true;"),
    "load of the machine": true("os.loadavg()[0] > 0"),
    "a report on the disk": true(
        "process.report.writeReport('/tmp/millrace-attack') && fs.existsSync('/tmp/millrace-attack')"
    ),
    "a heap on the disk": does(
        "require('v8').writeHeapSnapshot('/tmp/millrace-attack'); return true;"
    ),
    "a library that is no module": does(
        "process.dlopen({ exports: {} }, '/usr/lib/x86_64-linux-gnu/libc.so.6'); return true;"
    ),
    "a module of the machine": does("require('/etc/passwd'); return true;"),
    "what the test before it left": true(
        "fs.existsSync('/tmp/millrace-attack') || fs.existsSync('/dev/shm/millrace-attack')"
    ),
}

ON_THE_VERDICT = {
    "nothing": does("process.exit(0);"),
    "a hard end": does("process.reallyExit(0);"),
    "an end by another handler": does("process.on('exit', () => process.reallyExit(0)); throw 1;"),
    "a forged report": true("fs.writeSync(3, '=1\\n') < 0"),
    "a report of not compiling": does("fs.writeSync(3, 'Cx\\n');", Verdict.COMPILE_ERROR),
    "no output": does("fs.closeSync(1); return false;", Verdict.RUNTIME_ERROR),
    "its own output read back": true("fs.readSync(1, Buffer.alloc(9), 0, 9, 0) > 0"),
    "killed after its output": CppAttack(
        body="fs.writeSync(1, '918'); process.kill(process.pid, 'SIGKILL'); for (;;);", ends=_CRASH
    ),
    "an abort": CppAttack(body="process.abort();", ends=_CRASH),
    "a bad end": does("process.exit(7);", Verdict.RUNTIME_ERROR),
    "a promise that is refused": does(
        "Promise.reject(new Error('x')); setTimeout(() => {}, 1); return false;",
        Verdict.RUNTIME_ERROR,
        Verdict.WRONG_ANSWER,
    ),
    "another console": does("console.log = () => {}; return false;"),
    "another file system": does(
        "fs.writeSync = () => 1; process.stdout.write = () => true; return false;"
    ),
}

ON_RESOURCES = {
    "memory": CppAttack(
        body="const v = []; for (;;) v.push(new Array(1 << 17).fill(1.5));", ends=_MEMORY
    ),
    "memory outside the heap": CppAttack(
        body="const v = []; for (;;) v.push(Buffer.alloc(1 << 20, 1));", ends=_CRASH
    ),
    "shared memory": CppAttack(body="new SharedArrayBuffer(2 ** 31); return true;"),
    "memory of a machine": CppAttack(
        body="new Uint8Array(new WebAssembly.Memory({ initial: 60000 }).buffer).fill(1); return true;"
    ),
    "a string without an end": CppAttack(
        body="let s = 'x'; for (;;) s += s;", ends=_CRASH | {Verdict.WRONG_ANSWER}
    ),
    "recursion": CppAttack(body="const f = () => f() + 1; f(); return true;"),
    "output": CppAttack(body="for (;;) fs.writeSync(1, area);", ends=_OUTPUT),
    "errors": CppAttack(body="for (;;) fs.writeSync(2, area);", ends=_OUTPUT),
    "reports": CppAttack(body="for (;;) fs.writeSync(3, area);", ends=_OUTPUT),
    "sparse output": does("fs.ftruncateSync(1, 2 ** 40); return true;"),
    "output without a signal": CppAttack(
        body="process.on('SIGXFSZ', () => {}); for (;;) try { fs.writeSync(1, area); } catch {}",
        ends=_OUTPUT,
    ),
    "loop": CppAttack(body="for (;;);", ends=_TIME),
    "loop in an expression": CppAttack(
        body="/(x+x+)+y/.test('x'.repeat(40)); return false;", ends=_TIME
    ),
    "loop at the end": CppAttack(
        body="process.on('exit', () => { for (;;); }); return false;", ends=_TIME
    ),
    "loop in threads": CppAttack(
        body="const { Worker } = require('worker_threads');"
        "for (let i = 0; i < 2; i++) new Worker('for (;;);', { eval: true }); for (;;);",
        ends=_TIME | _CRASH,
    ),
    "threads without an end": CppAttack(
        body="const { Worker } = require('worker_threads');"
        "for (let i = 0; i < 99; i++) new Worker('for (;;);', { eval: true }); return false;",
        ends=_ANY_LIMIT,
    ),
    "loop in promises": CppAttack(
        body="const f = () => Promise.resolve().then(f); f(); return false;", ends=_TIME | _MEMORY
    ),
    "sleeps": CppAttack(
        body="Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); return false;",
        ends=_TIME,
        costly=True,
    ),
    "waits for nothing": CppAttack(body="setInterval(() => {}, 1 << 30);", ends=_TIME, costly=True),
}

JAVASCRIPT_ATTACKS = {
    f"{family}: {name}": attack
    for family, attacks in (
        ("machine", ON_THE_MACHINE),
        ("verdict", ON_THE_VERDICT),
        ("resource", ON_RESOURCES),
    )
    for name, attack in attacks.items()
}

_HEAD = """const fs = require('fs'), os = require('os'), cp = require('child_process');
const area = 'x'.repeat(4096);
"""


def javascript_program(attacks: dict[str, CppAttack]) -> str:
    """JavaScript that reads a number and does the attack of that place; an error is a denial."""
    parts = [f"() => {{ {one.body} }}," for one in attacks.values()]
    main = (
        "const write = fs.writeSync; let through = false;\n"
        "try { through = all[Number(fs.readFileSync(0, 'utf8'))](); } catch (error) {\n"
        "  if (error === 1) throw error;\n}\n"
        f"write(1, `${{through ? {SECRET} : 0}}\\n`);\n"
    )
    return "\n".join((_HEAD, "const all = [", *parts, "];", main))
