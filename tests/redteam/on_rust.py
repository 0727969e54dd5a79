"""Attacks by a Rust program, one program for all of them, and by sources that its compiler reads."""

# ruff: noqa: E501 - an attack a line

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import SECRET
from tests.redteam.on_cpp_programs import CppAttack, does, true
from tests.redteam.on_the_compiler import SourceAttack

_CRASH = frozenset({Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT})
_MEMORY = frozenset({Verdict.MEMORY_LIMIT})
_OUTPUT = frozenset({Verdict.OUTPUT_LIMIT})
_TIME = frozenset({Verdict.TIME_LIMIT})
_EITHER = frozenset({Verdict.COMPILE_ERROR, Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR})

RUST_ATTACKS = {
    "machine: start a program": true('Command::new("/bin/true").spawn().is_ok()'),
    "machine: become a program": does('Command::new("/bin/true").exec(); false'),
    "machine: passwords": true('fs::read("/etc/passwd").is_ok()'),
    "machine: the canary": true('fs::read("CANARY").is_ok()'),
    "machine: its environment": true('fs::read("/proc/self/environ").is_ok()'),
    "machine: a variable": true("std::env::vars().next().is_some()"),
    "machine: list the root": true('fs::read_dir("/").is_ok()'),
    "machine: a file": true('fs::write("/tmp/millrace-attack", "x").is_ok()'),
    "machine: a folder": true('fs::create_dir("/tmp/millrace-attack").is_ok()'),
    "machine: a link": true('std::os::unix::fs::symlink("/etc", "/tmp/millrace-attack").is_ok()'),
    "machine: remove": true('fs::remove_file("/usr/bin/env").is_ok()'),
    "machine: a port": true('std::net::TcpListener::bind("127.0.0.1:0").is_ok()'),
    "machine: datagrams": true('std::net::UdpSocket::bind("127.0.0.1:0").is_ok()'),
    "machine: a pair of sockets": true("std::os::unix::net::UnixStream::pair().is_ok()"),
    # socket, ptrace, fork, vfork, execve, sysinfo, unshare, setns, bpf, io_uring_setup, keyctl,
    # memfd_create, userfaultfd, epoll_create1, eventfd2, inotify_init1, mkdir, rename, readlink
    "machine: system calls": does(
        "[41, 101, 57, 58, 59, 99, 272, 308, 321, 425, 250, 319, 323, 291, 290, 294, 83, 82, 89]"
        ".iter().any(|&n| unsafe { syscall(n, AREA.as_ptr(), AREA.as_ptr(), 0usize, 0usize) } >= 0)"
    ),
    "machine: kill the parent": does("unsafe { kill(getppid(), 9) == 0 }"),
    "machine: kill everybody": does("unsafe { kill(-1, 9) == 0 }"),
    "verdict: nothing": does("std::process::exit(0)"),
    "verdict: a forged report": does('unsafe { write(3, b"=1\\n".as_ptr(), 3) < 0 }'),
    "verdict: a bad end": does("std::process::exit(7)", Verdict.RUNTIME_ERROR),
    "verdict: a panic": does("panic!()", Verdict.RUNTIME_ERROR),
    "verdict: an abort": CppAttack(body="std::process::abort()", ends=_CRASH),
    "verdict: its program": does('unsafe { write(6, b"x".as_ptr(), 1) == 1 }'),
    "resource: memory": CppAttack(
        body="let mut v = Vec::new(); loop { v.push(std::hint::black_box(vec![1u8; 1 << 20])); }",
        ends=_MEMORY,
    ),
    "resource: recursion": CppAttack(
        body="fn f(n: u64) -> u64 { let c = std::hint::black_box([n; 99]); f(c[9] + 1) + c[7] } f(1) > 0",
        ends=_CRASH,
    ),
    "resource: output": CppAttack(
        body="loop { unsafe { write(1, AREA.as_ptr(), 4096); } }", ends=_OUTPUT
    ),
    "resource: loop": CppAttack(body="loop { std::hint::black_box(1); }", ends=_TIME),
    "resource: loop in threads": CppAttack(
        body="for _ in 0..4 { std::thread::spawn(|| loop { std::hint::black_box(1); }); } loop {}",
        ends=_TIME,
    ),
    "resource: a thread bomb": does(
        "(0..9999).all(|_| std::thread::Builder::new().spawn(|| std::thread::park()).is_ok())",
        Verdict.WRONG_ANSWER,  # the creator is told that no stack is left, or
        *_CRASH,  # a thread that has begun finds no memory for itself, and Rust aborts
    ),
}

_HEAD = """#![allow(unconditional_recursion)]
use std::fs; use std::io::Read; use std::os::unix::process::CommandExt; use std::process::Command;
extern "C" {
    fn syscall(n: i64, ...) -> i64; fn kill(p: i32, s: i32) -> i32; fn getppid() -> i32;
    fn write(d: i32, p: *const u8, n: usize) -> isize;
}
static AREA: [u8; 4096] = [0; 4096];
"""


def rust_program(attacks: dict[str, CppAttack]) -> str:
    """Rust that reads a number and does the attack of that place."""
    parts = [f"fn a{n}() -> bool {{ {one.body} }}" for n, one in enumerate(attacks.values())]
    table = ", ".join(f"a{n}" for n in range(len(attacks)))
    main = (
        "fn main() { let mut t = String::new(); std::io::stdin().read_to_string(&mut t).unwrap();\n"
        f"let all: [fn() -> bool; {len(attacks)}] = [{table}];\n"
        "let through = all[t.trim().parse::<usize>().unwrap()]();\n"
        f'println!("{{}}", if through {{ {SECRET} }} else {{ 0 }}); }}'
    )
    return "\n".join((_HEAD, *parts, main))


def reads(line: str) -> SourceAttack:
    """A source that wants a file of the host's."""
    return SourceAttack(code=f'{line}\nfn main() {{ println!("0"); }}')


RUST_SOURCES = {
    "include the canary": reads('const C: &str = include_str!("CANARY");'),
    "include passwords": reads('const C: &[u8] = include_bytes!("/etc/passwd");'),
    "include its environment": reads('include!("/proc/self/environ");'),
    "a module elsewhere": reads('#[path = "CANARY"] mod c;'),
    "a variable of the service": reads('const C: &str = env!("MILLRACE_CANARY");'),
    "assemble the canary": reads('std::arch::global_asm!(".incbin \\"CANARY\\"");'),
    "a library elsewhere": reads('#[link(name = "passwd", kind = "static")] extern "C" {}'),
    "features of the compiler": reads("#![feature(rustc_private)]"),
    "a constant without an end": SourceAttack(
        code="#![allow(long_running_const_eval)]\nconst fn f() -> u64 { let mut n = 0; loop { n += 1; if n == 0 { return n } } }\n"
        'const C: u64 = f();\nfn main() { println!("{}", C); }',
        costly=True,
    ),
    "types by powers": SourceAttack(
        code="fn f<T>(n: u32, t: T) -> u32 where T: Copy { if n == 0 { 0 } else { f(n - 1, (t, t)) } }\n"
        'fn main() { println!("{}", f(60, 1u8)); }',
        ends=_EITHER,
        costly=True,
    ),
    "another compiler for the linker to start": SourceAttack(
        code='std::arch::global_asm!(".section .gnu.lto_.opts,\\"e\\",@progbits", ".string \\"-O2\\"", ".text");\n'
        'fn main() { println!("0"); }',
        ends=_EITHER,
    ),
}
