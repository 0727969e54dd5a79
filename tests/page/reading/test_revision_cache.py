import pytest

from services.page.reading.revision_cache import RevisionCache


def test_what_is_asked_again_before_something_changes_is_found_out_once() -> None:
    revision, found = [0], []
    answers = RevisionCache(lambda: revision[0])

    def find() -> int:
        found.append(revision[0])
        return revision[0]

    assert [answers.get("a", find), answers.get("a", find)] == [0, 0]
    revision[0] = 1
    assert [answers.get("a", find), answers.get("b", find)] == [1, 1]
    assert found == [0, 1, 1]


def test_what_could_not_be_found_is_looked_for_again() -> None:
    answers = RevisionCache(lambda: 0)
    with pytest.raises(ZeroDivisionError):
        answers.get("a", lambda: 1 // 0)
    assert answers.get("a", lambda: 7) == 7


def test_few_answers_are_kept() -> None:
    answers = RevisionCache(lambda: 0, most=2)
    for question in "abc":
        answers.get(question, question.upper)
    assert answers.get("c", str) == "C"
    assert answers.get("a", lambda: "again") == "again"
