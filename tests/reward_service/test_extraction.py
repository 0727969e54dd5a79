import pytest

from services.reward_service.extraction import extract_code


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nfirst\n```\n```py\nsecond\n```", "second\n"),
        ("```python\nunclosed = 1\n", "unclosed = 1\n"),
        ("~~~\nx = '```'\n~~~", "x = '```'\n"),
        ("````\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("use `x` inline", "use `x` inline"),
        ("  ```python\nx = 1\n  ```", "x = 1\n"),
        ("```python\r\nx = 1\r\n```", "x = 1\r\n"),
    ],
)
def test_the_last_fenced_block_or_else_the_whole_answer_is_the_code(
    completion: str, code: str
) -> None:
    assert extract_code(completion) == code


@pytest.mark.parametrize("completion", ["", " \n\t", "```python\n```", "text\n```\n\n```"])
def test_an_answer_without_code_is_none(completion: str) -> None:
    assert extract_code(completion) is None


def test_a_template_takes_the_answer_as_it_is() -> None:
    template = "def f(a):\n    return {completion}\n# {other} stays\n"
    assert extract_code("a + 1", template) == "def f(a):\n    return a + 1\n# {other} stays\n"
    assert extract_code(" ", template) is None


def test_a_hostile_answer_is_searched_in_linear_time() -> None:
    hostile = "`" * 200_000 + "\n```" * 20_000 + "~~~\n" * 20_000
    assert extract_code(hostile) is not None
