"""Results of workspaces as text for a model: bounded, and honest about what was cut."""

from itertools import islice

from services.protocol.reward.workspaces import CallResult, FileEntry

_LIMITS = {
    "time_limit": "it was stopped because it took too long",
    "memory_limit": "it was stopped because it needed too much memory",
    "output_limit": "it was stopped because it printed too much",
    "disk_limit": "it was stopped because it wrote too much to disk",
    "process_limit": "it started too many processes",
}
_KINDS = {"folder": "/", "link": "@", "other": "?"}


def cut_middle(text: str, max_chars: int) -> str:
    """A text of at most `max_chars`, and in place of its middle a line that says how much is
    gone: what a program says at its end is worth as much as what it says first."""
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    tail = max_chars - head
    gone = len(text) - head - tail
    return f"{text[:head]}\n[{gone} characters are not shown]\n{text[len(text) - tail :]}"


def call_text(result: CallResult, *, wall_s: float, max_chars: int) -> str:
    """What a cell or command printed, its value and how it ended.

    Args:
        result: of the call.
        wall_s: seconds that it was given.
        max_chars: of what it printed and of its value; how it ended comes after them in full.
    """
    shown = [result.stdout, result.stderr, result.traceback or "", result.result or ""]
    output = "\n".join(part.rstrip("\n") for part in shown if part.strip("\n"))
    notes = [*_notes(result, wall_s)]
    if not output and not notes:
        return "(no output)"
    return "\n".join([part for part in (cut_middle(output, max_chars), *notes) if part])


def _notes(result: CallResult, wall_s: float) -> list[str]:
    notes = [f"[a picture: {one.mime}]" for one in result.pictures]
    received = len(result.stdout.encode()) + len(result.stderr.encode())
    written = result.stdout_bytes + result.stderr_bytes
    if written > received:
        notes.append(f"[{written - received} more bytes were printed and are not shown]")
    if result.status in _LIMITS:
        after = f" ({wall_s:g} s)" if result.status == "time_limit" else ""
        notes.append(f"[{result.status}: {_LIMITS[result.status]}{after}]")
    elif result.exit_code is not None and result.exit_code < 0:
        notes.append(f"[ended by signal {-result.exit_code}]")
    elif result.exit_code:
        notes.append(f"[exit status {result.exit_code}]")
    elif result.status == "failed" and result.traceback is None:
        notes.append("[failed]")
    if result.interpreter_restarted:
        notes.append("[the interpreter was restarted: variables of earlier calls are gone]")
    return notes


def file_text(content: bytes, *, first_line: int, lines: int | None) -> str:
    """Some lines of a file; bytes that are not UTF-8 are shown as U+FFFD."""
    text = content.decode("utf-8", errors="replace")
    if first_line == 1 and lines is None:
        return text or "(the file is empty)"
    last = None if lines is None else first_line - 1 + lines
    chosen = "".join(islice(text.splitlines(keepends=True), first_line - 1, last))
    return chosen or f"(there is no line {first_line})"


def folder_text(entries: list[FileEntry]) -> str:
    """A folder, one entry a line with its size in bytes."""
    names = [f"{one.bytes:>10}  {one.path}{_KINDS.get(one.kind, '')}" for one in entries]
    return "\n".join(names) or "(the folder is empty)"
