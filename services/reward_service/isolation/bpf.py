"""A small assembler for classic BPF, as much of it as a seccomp filter needs.

The filter sees `struct seccomp_data`: int nr, u32 arch, u64 instruction_pointer, u64 args[6].
Encoding: `struct sock_filter` of linux/filter.h, 8 bytes: u16 code, u8 jt, u8 jf, u32 k.
"""

import struct
from typing import NamedTuple

_LOAD_WORD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST = 0x05, 0x15, 0x35

NUMBER_AT, ARCH_AT = 0, 4
NEXT = ""
"""The label of the instruction that follows."""


def argument_at(index: int, *, high: bool = False) -> int:
    """Offset of the low or high half of a system call's argument (little endian)."""
    return 16 + 8 * index + (4 if high else 0)


class _Instruction(NamedTuple):
    code: int
    k: int = 0
    if_true: str = NEXT
    if_false: str = NEXT
    target: str | None = None


class Assembler:
    """Collects instructions whose jumps name labels, and encodes them."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._instructions)

    def label(self, name: str) -> None:
        """Name the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name} is used twice")
        self._labels[name] = len(self._instructions)

    def load(self, offset: int) -> None:
        """Load 32 bits of `seccomp_data` into the accumulator."""
        self._instructions.append(_Instruction(_LOAD_WORD, offset))

    def mask(self, bits: int) -> None:
        """Keep only these bits of the accumulator."""
        self._instructions.append(_Instruction(_AND, bits))

    def jump(self, target: str) -> None:
        """Go on at a label."""
        self._instructions.append(_Instruction(_JUMP, target=target))

    def if_equal(self, value: int, if_true: str = NEXT, if_false: str = NEXT) -> None:
        """Branch on accumulator == value."""
        self._instructions.append(_Instruction(_JUMP_EQUAL, value, if_true, if_false))

    def if_at_least(self, value: int, if_true: str = NEXT, if_false: str = NEXT) -> None:
        """Branch on accumulator >= value, unsigned."""
        self._instructions.append(_Instruction(_JUMP_AT_LEAST, value, if_true, if_false))

    def give(self, action: int) -> None:
        """End with this seccomp action."""
        self._instructions.append(_Instruction(_RETURN, action))

    def encode(self) -> bytes:
        """The program, 8 bytes an instruction.

        Raises:
            ValueError: a label is unknown, behind the jump, or too far ahead for a branch.
        """
        return b"".join(self._encoded(i, at) for at, i in enumerate(self._instructions))

    def _encoded(self, instruction: _Instruction, at: int) -> bytes:
        k = instruction.k
        if instruction.target is not None:
            k = self._distance(instruction.target, at)
        branches = (instruction.if_true, instruction.if_false)
        if_true, if_false = (self._distance(label, at) for label in branches)
        if max(if_true, if_false) > 255:
            raise ValueError(f"branch at {at} is too long")
        return struct.pack("=HBBI", instruction.code, if_true, if_false, k)

    def _distance(self, label: str, at: int) -> int:
        if label == NEXT:
            return 0
        if label not in self._labels or self._labels[label] <= at:
            raise ValueError(f"label {label} is not ahead of instruction {at}")
        return self._labels[label] - at - 1
