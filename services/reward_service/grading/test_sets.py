"""Tests that were handed over once, by the hash of their text, so that jobs only name them."""

import hashlib
from pathlib import Path

from cachetools import LRUCache
from pydantic import TypeAdapter, ValidationError

from services.disk import replace_file
from services.http.json_body import strict_json
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import CodeGrader, check_tests
from services.protocol.reward.code_tests import CodeTest

_TESTS = TypeAdapter(list[CodeTest])


class TestSets:
    """Least recently used sets, and a folder from which those of other replicas are read.

    Args:
        max_bytes: text of all sets that are kept in memory.
        folder: where sets are also kept; None for nowhere.
    """

    __test__ = False  # not for pytest

    def __init__(self, *, max_bytes: int, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        # A set that is larger than the bound is kept alone.
        self._sets: LRUCache[str, tuple[int, list[CodeTest]]] = LRUCache(
            max_bytes, getsizeof=lambda kept: min(kept[0], max_bytes)
        )

    def put(self, name: str, text: bytes) -> int:
        """Keep a set: a JSON list of tests; returns their number.

        Raises:
            InvalidInput: the name is not the text's SHA-256, or the text is no list of tests.
        """
        found = hashlib.sha256(text).hexdigest()
        if name != found:
            raise InvalidInput("hash", name, f"The SHA-256 of this body is {found}.")
        tests = _read(text)
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / f"{name}.json", text)
        self._sets[name] = len(text), tests
        return len(tests)

    def of_grader(self, grader: CodeGrader) -> list[CodeTest] | None:
        """The grader's tests, None if their set was never handed over.

        Raises:
            ValueError: the set does not fit the grader.
        """
        if grader.test_set is None:
            return grader.tests
        tests = self.get(grader.test_set)
        check_tests(tests or [], grader.entry_point, grader.language)
        return tests

    def get(self, name: str) -> list[CodeTest] | None:
        """The tests of a set, None if it was never handed over."""
        if name in self._sets:
            return self._sets[name][1]
        file = None if self._folder is None else self._folder / f"{name}.json"
        if file is None or not file.is_file():
            return None
        text = file.read_bytes()
        if hashlib.sha256(text).hexdigest() != name:
            return None
        tests = _read(text)
        self._sets[name] = len(text), tests
        return tests


def _read(text: bytes) -> list[CodeTest]:
    try:
        tests = _TESTS.validate_python(strict_json(text.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in ("tests", *first["loc"]))
            raise InvalidInput(field, first["input"], f"{first['msg']}.") from None
        raise InvalidInput("body", "(not JSON)", f"Send a JSON list of tests: {error}.") from None
    if not tests:
        raise InvalidInput("tests", [], "Give at least one test.")
    return tests
