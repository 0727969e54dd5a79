"""A file with an answer and a file of tests as a job of the reward service."""

import json
from pathlib import Path
from typing import Any, get_args

from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.grader import AnyGrader
from services.protocol.reward.reward_service import ScoreJob
from services.protocol.strict import nearest
from services.protocol.text_file import read_text_file
from services.protocol.yaml_text import load_yaml

_MODELS: dict[str, type[AnyGrader]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(AnyGrader)
}
_PYTHON = ("python_asserts", "python_function", "python_stdio")


def reference_of(grader: AnyGrader) -> str | None:
    """The answer that its author knows to be right, None if there is none."""
    found: str | None = getattr(grader, "reference", None)
    return found


def read_code_job(file: str | None, tests: str) -> ScoreJob:
    """The file as a job of the reward service.

    Args:
        file: code, whose suffix says the language, or a model's answer; None: the grader's
            reference.
        tests: a list of tests, or a grader of any kind.

    Raises:
        InvalidInput: naming the file, and the field if there is one.
    """
    from services.reward_service.languages import languages

    answer = None if file is None else read_text_file(file, field="FILE")
    suffix = Path(file or "").suffix.lower()
    language = next((name for name, one in languages().items() if suffix in one.suffixes), None)
    data = _grader_data(tests)
    model = _MODELS.get(str(data["kind"]))
    if model is None:
        fix = f"Known are {', '.join(_MODELS)}{nearest(data['kind'], list(_MODELS))}."
        raise InvalidInput(f"{tests}: kind", data["kind"], fix)
    if language is not None:
        if language != "python" and data["kind"] in _PYTHON:
            raise InvalidInput("FILE", file, f"A grader of kind {data['kind']} tests Python only.")
        # All of the file is code, whatever fences it has.
        known = {"template": "{completion}", "language": language}
        data = {name: one for name, one in known.items() if name in model.model_fields} | data
    grader = model.from_data(data, source=tests)
    if isinstance(grader, CodeGrader) and grader.language not in languages():
        fix = f"Known are {sorted(languages())}{nearest(grader.language, sorted(languages()))}."
        raise InvalidInput(f"{tests}: language", grader.language, fix)
    if isinstance(grader, CodeGrader) and (missing := languages()[grader.language].missing()):
        raise InvalidInput(f"{tests}: language", grader.language, missing)
    answer = reference_of(grader) if answer is None else answer
    if answer is None:
        fix = "Give an answer: the grader has no `reference`."
        raise InvalidInput(f"{tests}: reference", None, fix)
    return ScoreJob(job_id=Path(file or tests).name, completion=answer, grader=grader)


def _grader_data(tests: str) -> dict[str, Any]:
    if tests.lower().endswith(".py"):
        return {"kind": "python_asserts", "tests": read_text_file(tests, field="--tests")}
    data = _json(tests) if tests.lower().endswith(".json") else load_yaml(tests)
    if isinstance(data, list) and data and all(isinstance(test, str) for test in data):
        return {"kind": "python_asserts", "tests": data}
    if isinstance(data, list):
        return {"kind": "code", "tests": data}
    if isinstance(data, dict):
        return {"kind": "code", **data}
    fix = "Give a list of tests, or a mapping with the fields of a grader, such as `tests`."
    raise InvalidInput(f"{tests}: (whole document)", data, fix)


def _json(path: str) -> Any:
    text = read_text_file(path, field="--tests")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("--tests", path, f"It is not JSON: {error}.") from None
