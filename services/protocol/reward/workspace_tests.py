"""Tests of a workspace: programs that run in a copy of it, or a grader for one of its files."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from services.protocol.reward.code_tests import (
    ExactChecker,
    FloatChecker,
    Policy,
    TokensChecker,
    TrailingSpaceChecker,
    UnorderedChecker,
)
from services.protocol.reward.grader import Grader
from services.protocol.reward.workspaces import ExecCall, FilePath, Text
from services.protocol.strict import StrictModel, wrong_field

TESTS = "{tests}"
"""In an argument of a test: the folder with the tests' files. Programs have it as `$TESTS`."""

OutputChecker = Annotated[
    ExactChecker | TrailingSpaceChecker | TokensChecker | FloatChecker | UnorderedChecker,
    Field(discriminator="kind"),
]


class ProgramTest(ExecCall):
    """One program, what it must print and how it must end.

    It runs in a copy of the workspace of its own, so no test sees what another one did. What it
    printed is compared in the service; the expected output never enters the jail.

    Attributes:
        wall_s: as for `exec`.
        cpu_s: as for `exec`.
        expected: what it must print.
        also: other outputs that are right as well.
        checker: what makes an output right.
        exit_code: the exit status that it must end with; None for any.
        trust_exit_code: let the exit status alone decide. Any code that the program imports from
            the workspace can choose it (`os._exit(0)`): only for programs that run nothing of it.
        weight: its part in the policies `weighted` and `grouped`.
        group: subtask in the policy `grouped`; a test without one is a group of its own.
    """

    wall_s: float = Field(default=10.0, gt=0, le=600)
    cpu_s: float = Field(default=10.0, gt=0, le=600)
    expected: Text | None = None
    also: list[Text] = Field(default_factory=list)
    checker: OutputChecker = TrailingSpaceChecker()
    exit_code: int | None = 0
    trust_exit_code: bool = False
    weight: float = Field(default=1.0, ge=0)
    group: str | None = None

    @model_validator(mode="after")
    def _something_decides(self) -> Self:
        if self.stream:
            raise wrong_field("stream", True, "Leave it out: a test has a verdict, no stream")
        if self.trust_exit_code:
            if self.expected is not None or self.also or self.exit_code is None:
                fix = "Leave it out, or give exit_code and no expected output"
                raise wrong_field("trust_exit_code", True, fix)
        elif self.expected is None:
            fix = (
                "Say what the program must print: code of the workspace that it imports can end "
                "it with any exit status. Where it imports none, set trust_exit_code"
            )
            raise wrong_field("expected", None, fix)
        return self

    @property
    def outputs(self) -> list[str]:
        """All that are right; none where the exit status decides."""
        return [] if self.expected is None else [self.expected, *self.also]


class GradeWorkspace(StrictModel):
    """How to grade a workspace: either `tests`, or a `grader` for the file at `path`.

    Attributes:
        tests: programs, each of which runs in a fresh copy of the workspace.
        files: UTF-8 texts that tests need, by path. They are put into a folder beside the
            workspace, which programs can read and not change: `$TESTS`, and `{tests}` in `argv`.
        policy: how passed tests become a reward.
        grader: grades the file's text as it would an answer; code is the whole file, unless the
            grader has a template.
        path: of that file.
        close: close the workspace when it has its score. One that could not be graded stays open.
    """

    tests: list[ProgramTest] = Field(default_factory=list, max_length=1024)
    files: dict[FilePath, Text] = Field(default_factory=dict)
    policy: Policy = "all"
    grader: Grader | None = None
    path: FilePath | None = None
    close: bool = True

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.tests) == (self.grader is not None):
            found = "(both)" if self.tests else "(neither)"
            raise wrong_field("tests", found, "Give either tests, or a grader and a path")
        if (self.grader is None) != (self.path is None):
            fix = "A grader needs the path of a file, and a path a grader"
            raise wrong_field("path", self.path, fix)
        if self.files and not self.tests:
            raise wrong_field("files", sorted(self.files), "They are for tests: leave them out")
        return self
