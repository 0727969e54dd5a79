"""Attacks by a Go program: one program holds them all, and its input says which."""

# ruff: noqa: E501 - an attack a line

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import SECRET
from tests.redteam.on_cpp_programs import CppAttack, does

_CRASH = frozenset({Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT})
_MEMORY = frozenset({Verdict.MEMORY_LIMIT})
_OUTPUT = frozenset({Verdict.OUTPUT_LIMIT})
_TIME = frozenset({Verdict.TIME_LIMIT})


def works(call: str) -> CppAttack:
    """A call that must give an error."""
    return CppAttack(body=f"err := {call}; return err == nil")


def gives(call: str) -> CppAttack:
    """One with a result beside the error."""
    return CppAttack(body=f"_, err := {call}; return err == nil")


GO_ATTACKS = {
    "machine: start a program": works('exec.Command("/bin/true").Start()'),
    "machine: become a program": works('syscall.Exec("/bin/true", []string{"true"}, nil)'),
    "machine: passwords": gives('os.ReadFile("/etc/passwd")'),
    "machine: the canary": gives('os.ReadFile("CANARY")'),
    "machine: its environment": gives('os.ReadFile("/proc/self/environ")'),
    "machine: its memory": gives('os.OpenFile("/proc/self/mem", os.O_RDWR, 0)'),
    "machine: a canary in a variable": does(
        'return strings.Contains(strings.Join(os.Environ(), " "), "canary")'
    ),
    "machine: list the root": gives('os.ReadDir("/")'),
    "machine: list processes": gives('os.ReadDir("/proc")'),
    "machine: a file": works('os.WriteFile("/tmp/millrace-attack", nil, 0600)'),
    "machine: a file in shared memory": works(
        'os.WriteFile("/dev/shm/millrace-attack", nil, 0600)'
    ),
    "machine: a folder": works('os.Mkdir("/tmp/millrace-attack", 0700)'),
    "machine: a link": works('os.Symlink("/etc", "/tmp/millrace-attack")'),
    "machine: a mode": works('os.Chmod("/tmp", 0777)'),
    "machine: remove": works('os.Remove("/usr/bin/env")'),
    "machine: rename": works('os.Rename("/usr/bin/env", "/usr/bin/vne")'),
    "machine: a port": gives('net.Listen("tcp", "127.0.0.1:0")'),
    "machine: datagrams": gives('net.ListenPacket("udp", "127.0.0.1:0")'),
    "machine: names of hosts": gives('net.LookupHost("localhost.example")'),
    "machine: kill the parent": works("syscall.Kill(os.Getppid(), 9)"),
    "machine: kill everybody": works("syscall.Kill(-1, 9)"),
    # socket, socketpair, ptrace, fork, vfork, execve, sysinfo, unshare, bpf, io_uring_setup,
    # memfd_create, userfaultfd, inotify_init1, mkdir, rename, readlink, flock
    "machine: system calls": does(
        "for _, n := range []uintptr{41, 53, 101, 57, 58, 59, 99, 272, 321, 425, 319, 323, 294, 83, 82, 89, 73}"
        " { if _, _, err := syscall.RawSyscall(n, uintptr(unsafe.Pointer(&area)), uintptr(unsafe.Pointer(&area)), 0); err == 0 { return true } }; return false"
    ),
    "verdict: nothing": does("os.Exit(0); return false"),
    "verdict: a forged report": does('n, _ := syscall.Write(3, []byte("=1\\n")); return n < 0'),
    "verdict: a bad end": does("os.Exit(7); return false", Verdict.RUNTIME_ERROR),
    "verdict: a panic": does('panic("x")', Verdict.RUNTIME_ERROR),
    "verdict: a panic elsewhere": CppAttack(
        body="go func() { panic(1) }(); select {}", ends=frozenset({Verdict.RUNTIME_ERROR})
    ),
    "verdict: its program": does('n, _ := syscall.Write(6, []byte("x")); return n == 1'),
    "verdict: a fault": CppAttack(body="var p *int; *p = 1; return false", ends=_CRASH),
    "resource: memory": CppAttack(
        body="var v [][]byte; for { b := make([]byte, 1<<20); for i := range b { b[i] = 1 }; v = append(v, b); if len(v) < 0 { return true } }",
        ends=_MEMORY,
    ),
    "resource: recursion": CppAttack(
        body="var f func(n int) int; f = func(n int) int { return f(n+1) + 1 }; return f(0) > 0",
        ends=_CRASH,
    ),
    "resource: output": CppAttack(body="for { os.Stdout.Write(area[:]) }", ends=_OUTPUT),
    "resource: reports": CppAttack(body="for { syscall.Write(3, area[:]) }", ends=_OUTPUT | _CRASH),
    "resource: loop": CppAttack(
        body="for i := 0; i >= 0; i = (i + 1) & 7 { }; return true", ends=_TIME
    ),
    "resource: loop in threads": CppAttack(
        body="for i := 0; i < 8; i++ { go func() { for { } }() }; for { }", ends=_TIME
    ),
    "resource: threads": CppAttack(
        body="runtime.GOMAXPROCS(9999); for i := 0; i < 9999; i++ { go func() { runtime.LockOSThread(); for { syscall.Pause() } }() }; time.Sleep(time.Second); return false",
        ends=_CRASH | _TIME | {Verdict.WRONG_ANSWER},
    ),
    "resource: sleeps": CppAttack(
        body="time.Sleep(999 * time.Second); return false", ends=_TIME, costly=True
    ),
}

_HEAD = """package main

import ("fmt"; "net"; "os"; "os/exec"; "runtime"; "strings"; "syscall"; "time"; "unsafe")

var area [4096]byte
var _ = []any{net.Dial, exec.Command, runtime.GC, strings.Join, syscall.Kill, time.Sleep, unsafe.Pointer(nil)}
"""


def go_program(attacks: dict[str, CppAttack]) -> str:
    """Go that reads a number and does the attack of that place."""
    parts = [f"func a{n}() bool {{ {one.body} }}" for n, one in enumerate(attacks.values())]
    table = ", ".join(f"a{n}" for n in range(len(attacks)))
    main = (
        "func main() { var n int; fmt.Scan(&n)\n"
        f"all := []func() bool{{{table}}}\n"
        f"if all[n]() {{ fmt.Println({SECRET}) }} else {{ fmt.Println(0) }} }}"
    )
    return "\n".join((_HEAD, *parts, main))
