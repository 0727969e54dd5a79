"""The fork server's loop in C: `launcher.c`, loaded from a descriptor."""

import contextlib
import ctypes
import os
import types
from collections.abc import Iterator, Sequence
from typing import NoReturn

from services.reward_service.jailed import answer

_MIN_RANGE = 1 << 16
"""A smaller mapping is not worth a file; among them are those of the C library's own data."""


_INPUT = b"3 words\n1 2 3\n"
_COMMON = """
import sys
from collections import Counter

def main():
    first, *words = input().split()
    numbers = [int(word) for word in sys.stdin.read().split()]
    counts = Counter(numbers)
    for number in sorted(counts, key=lambda number: -number):
        words.append(str(number))
    print(first, max(numbers), sum(numbers))
    print(*words)

main()
"""


class _Kind(ctypes.Structure):
    _fields_ = (
        ("ruleset", ctypes.c_int32),
        ("interpreter", ctypes.c_int32),
        ("filter", ctypes.c_char_p),
        ("length", ctypes.c_uint32),
        ("own_pid_at", ctypes.c_uint32),
    )


class _Server(ctypes.Structure):
    _fields_ = (
        ("control", ctypes.c_int64),
        ("address_space", ctypes.c_uint64),
        ("processes", ctypes.c_uint64),
        ("kinds", ctypes.POINTER(_Kind)),
    )


class Launcher:
    """The library.

    Args:
        descriptor: of its file; closed here.
        proc: of the folder /proc, which the jail itself may not have; closed by `prepare`.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, descriptor: int, proc: int) -> None:
        self._proc = proc
        try:
            with _working_folder(proc):  # a path is all that the loader takes
                # Not CDLL, which would let the interpreter go on while a call runs.
                self._library = ctypes.PyDLL(f"self/fd/{descriptor}")
        except OSError:
            os.close(proc)
            raise
        finally:
            os.close(descriptor)

    def prepare(self) -> None:
        """Prepare this process's memory for forks; its standard streams are empty files."""
        code = compile(_COMMON, "common.py", "exec")
        with _working_folder(self._proc), open("self/maps", encoding="utf-8") as file:
            ranges = [found for line in file if (found := _written_memory(line))]
        places = [place for ends in ranges for place in ends]
        if self._library.settle((ctypes.c_uint64 * len(places))(*places), len(ranges)):
            self._learn(code)
        os.close(self._proc)

    def serve(
        self,
        control: int,
        address_space: int,
        processes: int,
        kinds: Sequence[tuple[int, int, bytes, int]],
    ) -> bool:
        """Serve orders until the service hangs up, and return False.

        Returns True in each process that is to run Python, confined and with its descriptors.

        Args:
            control: the socket.
            address_space: bytes that this process has in use.
            processes: limit of processes.
            kinds: of each kind the ruleset, an interpreter's descriptor or -1, and the filter.
        """
        made = (_Kind * len(kinds))(
            *(
                _Kind(ruleset, interpreter, program, len(program) // 8, own_pid_at)
                for ruleset, interpreter, program, own_pid_at in kinds
            )
        )
        server = _Server(control, address_space, processes, made)
        return bool(self._library.serve(ctypes.byref(server)))

    def _learn(self, code: types.CodeType) -> NoReturn:
        """Do what most answers do: the memory that this writes to others will write to as well."""
        os.write(0, _INPUT)
        os.lseek(0, 0, os.SEEK_SET)
        answer.run_answer({"code": code}, answer.reporter(1), (0, 0))
        self._library.learned(os.open("self/pagemap", os.O_RDONLY, dir_fd=self._proc))
        os._exit(1)


@contextlib.contextmanager
def _working_folder(folder: int) -> Iterator[None]:
    os.fchdir(folder)
    try:
        yield
    finally:
        os.chdir("/")


def _written_memory(line: str) -> tuple[int, int] | None:
    """Begin and end of a mapping in /proc/self/maps, None if it is left as it is."""
    places, rights, _, _, _, *name = line.split(maxsplit=5)
    begin, end = (int(place, 16) for place in places.split("-"))
    other = name and name[0].startswith("[") and not name[0].startswith("[heap]")
    return None if rights != "rw-p" or other or end - begin < _MIN_RANGE else (begin, end)
