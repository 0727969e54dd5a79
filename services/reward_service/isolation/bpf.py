"""A small assembler for classic BPF, as much of it as a seccomp filter needs.

The filter sees `struct seccomp_data`: int nr, u32 arch, u64 instruction_pointer, u64 args[6].
Encoding: `struct sock_filter` of linux/filter.h, 8 bytes: u16 code, u8 jt, u8 jf, u32 k.
"""

import struct

LOAD, AND, XOR, SHIFT_RIGHT, RETURN = 0x20, 0x54, 0xA4, 0x74, 0x06
"""Load 32 bits of `seccomp_data`; keep, flip or move some of them; end with an action."""
JUMP, JUMP_EQUAL, JUMP_AT_LEAST = 0x05, 0x15, 0x35
"""To the label in place of `k`; by what was loaded, compared unsigned with `k`."""

NUMBER_AT, ARCH_AT = 0, 4
NEXT = ""
"""The label of the instruction that follows."""


def argument_at(index: int, *, high: bool = False) -> int:
    """Offset of the low or high half of a system call's argument (little endian)."""
    return 16 + 8 * index + (4 if high else 0)


class Assembler:
    """Collects instructions whose jumps name labels, and encodes them."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int | str, str, str]] = []
        self._labels: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._instructions)

    def label(self, name: str) -> None:
        """Name the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name} is used twice")
        self._labels[name] = len(self._instructions)

    def add(self, code: int, k: int | str, if_true: str = NEXT, if_false: str = NEXT) -> None:
        """Add an instruction; the labels are those of a conditional jump."""
        self._instructions.append((code, k, if_true, if_false))

    def encode(self) -> bytes:
        """The program, 8 bytes an instruction.

        Raises:
            ValueError: a label is unknown, behind the jump, or too far ahead for a branch.
        """
        program = b""
        for at, (code, k, *branches) in enumerate(self._instructions):
            if_true, if_false = (self._distance(label, at) for label in branches)
            if max(if_true, if_false) > 255:
                raise ValueError(f"branch at {at} is too long")
            value = self._distance(k, at) if isinstance(k, str) else k
            program += struct.pack("=HBBI", code, if_true, if_false, value)
        return program

    def _distance(self, label: str, at: int) -> int:
        if label == NEXT:
            return 0
        if label not in self._labels or self._labels[label] <= at:
            raise ValueError(f"label {label} is not ahead of instruction {at}")
        return self._labels[label] - at - 1
