"""When a process began: with its number, the name of one process of a node."""


def started(pid: int) -> int:
    """Clock ticks from the node's start to the process's, from /proc/PID/stat.

    Raises:
        FileNotFoundError, ProcessLookupError: there is none.
    """
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        # The name before may contain blanks and brackets; proc(5) counts this field as the 22nd.
        return int(file.read().rpartition(")")[2].split()[19])
