"""Compares what a program printed, or a call returned, with what is expected. Pure."""

from typing import Any

from services.protocol.reward.code_tests import (
    Checker,
    CustomChecker,
    ExactChecker,
    FloatChecker,
    TokensChecker,
    UnorderedChecker,
)
from services.reward_service.judging import values


def output_is_right(checker: Checker, expected: str, output: bytes) -> bool:
    """Whether an output passes; of the checkers that are no programs."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if output == wanted:
        return True
    if isinstance(checker, ExactChecker):
        return False
    if isinstance(checker, TokensChecker):
        return output.split() == wanted.split()
    if isinstance(checker, FloatChecker):
        return _close_words(wanted.split(), output.split(), checker)
    if isinstance(checker, UnorderedChecker):
        return sorted(_lines(output)) == sorted(_lines(wanted))
    return _lines(output) == _lines(wanted)


def result_is_right(checker: Checker, expected: Any, text: str, *, static_types: bool) -> bool:
    """Whether a call's result, as `codec` writes it, passes.

    Raises:
        NoText: the expected value is not plain data.
    """
    if isinstance(checker, FloatChecker):
        return values.close(expected, text, checker)
    if isinstance(checker, UnorderedChecker):
        return values.unordered(expected, text)
    if static_types:
        return values.same_value(expected, text)
    return values.same_type_and_value(expected, text)


def is_program(checker: Checker) -> bool:
    """Whether the checker is the user's code."""
    return isinstance(checker, CustomChecker)


def _lines(output: bytes) -> list[bytes]:
    """Lines without trailing white space, without empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().split(b"\n")]


def _close_words(expected: list[bytes], words: list[bytes], tolerance: FloatChecker) -> bool:
    if len(expected) != len(words):
        return False
    return all(_close_word(*pair, tolerance) for pair in zip(expected, words, strict=True))


def _close_word(expected: bytes, word: bytes, tolerance: FloatChecker) -> bool:
    if expected == word:
        return True
    try:
        if b"_" in word:  # which Python takes for a number
            return False
        wanted, number = float(expected), float(word)
    except ValueError:
        return False
    return values.within(wanted, number, tolerance)
