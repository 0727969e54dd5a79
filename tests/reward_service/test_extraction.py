import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward_service.graders.code import blocks, extract_code, with_prelude


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


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("1. x\n   ```python\n   print(1)\n   ```", "print(1)\n"),
        ("  ```py\n  if a:\n\n \n    b\r\n  ```", "if a:\n\n \n  b\r\n"),
        (" ~~~\n   unclosed", "  unclosed"),
        ("  ```py\n    if a:\n   b\n```", "  if a:\n b\n"),
        ("   ```py\nif a:\n    b\n   ```", "if a:\n    b\n"),
        ("  ```py\n    a\n b\n  ```", "    a\n b\n"),
        ("```py\n  a\n```", "  a\n"),
    ],
)
def test_the_indent_of_a_fence_is_removed_from_its_lines_where_all_have_it(
    completion: str, code: str
) -> None:
    assert extract_code(completion) == code


@pytest.mark.parametrize(
    "beginning",
    [
        "",
        "# comment\r\n\n",
        '"""text of "two"\nlines"""\n',
        "r'a\\'b'  # text\n",
        "from __future__ import division\r\n",
        "from __future__ import (  # some\n    division,\n    generators,\n)\n\n# more\n",
        "from __future__ import division as d, generators; ",
    ],
)
def test_imports_from_the_future_stay_before_a_prelude(beginning: str) -> None:
    code = f"{beginning}from __future__ import annotations  # a; b\nf: Never = 1\nprint(x)\n"
    for one in (code, code.replace("  # a; b\nf", "; f")):
        compile(with_prelude(one, "from __future__ import annotations\nx = 1"), "answer", "exec")


@pytest.mark.parametrize(
    "code", ["x = 1", "", "import os\nx = 1", "s = '''\nfrom __future__ import annotations\n'''"]
)
def test_a_prelude_stands_first_where_nothing_is_imported_from_the_future(code: str) -> None:
    assert with_prelude(code, "y = 2") == f"y = 2\n{code}"


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


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("<think>```py\nwrong\n```</think>\n```py\nright\n```", "right\n"),
        ("```py\nwrong\n```</think>right", "right"),
        ("```python\nright\n```\nIt prints:\n```\n5\n```", "right\n"),
        ("```\nright\n```\nor\n```json\n{}\n```", "right\n"),
        ("```cpp\nfirst\n```\n```rust\nlast\n```", "last\n"),
        ("```py\nx = '''\n~~~\n'''\n```", "x = '''\n~~~\n'''\n"),
        ("```Python3 title\nx\n````", "x\n"),
        ("    ```\nindented too far", "    ```\nindented too far"),
        ("x\u2028```py\ny", "x\u2028```py\ny"),
    ],
)
def test_thinking_is_left_out_and_the_tag_decides_between_blocks(
    completion: str, code: str
) -> None:
    assert extract_code(completion) == code


def test_an_answer_that_never_stops_thinking_has_no_code() -> None:
    assert extract_code(" <think>```py\nx\n```") is None


texts = st.text(alphabet="`~\n pyx<think>/\r", max_size=200)


@given(texts)
@settings(max_examples=200)
def test_code_is_a_part_of_the_answer_and_the_same_each_time(completion: str) -> None:
    code = extract_code(completion)
    assert code == extract_code(completion)
    if code is not None:  # but for the indent of a fence
        assert code.strip()
        assert code.replace(" ", "") in completion.replace(" ", "")


@given(texts, st.integers(3, 6))
@settings(max_examples=200)
def test_a_block_with_a_longer_fence_than_its_text_comes_back_whole(text: str, more: int) -> None:
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + more)
    (block,) = blocks(f"{fence}py\n{text}\n{fence}\n")
    assert (block.tag, block.text, block.closed) == ("py", text + "\n", True)


@given(texts, texts)
@settings(max_examples=100)
def test_thinking_before_an_answer_changes_nothing(thought: str, answer: str) -> None:
    thought = thought.replace("</think>", "")
    plain = "" if "</think>" in answer or answer.lstrip().startswith("<think>") else answer
    assert extract_code(f"<think>{thought}</think>{plain}") == extract_code(plain)
