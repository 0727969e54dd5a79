"""The tests of one workspace: each in a copy of its own, compared outside of it."""

from pathlib import Path

from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import CheckedTest, Score, Verdict
from services.protocol.reward.workspace_tests import TESTS, GradeWorkspace, ProgramTest
from services.protocol.reward.workspaces import CallResult, OpenWorkspace
from services.reward_service.judging.comparison import output_is_right
from services.reward_service.judging.judge import printable
from services.reward_service.judging.policy import policy_reward, still_matters
from services.reward_service.judging.trial import head
from services.reward_service.off_loop import off_loop
from services.reward_service.workspaces.errors import WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces

_AT_LIMIT = {
    "time_limit": Verdict.TIME_LIMIT,
    "memory_limit": Verdict.MEMORY_LIMIT,
    "output_limit": Verdict.OUTPUT_LIMIT,
    "disk_limit": Verdict.RUNTIME_ERROR,
    "process_limit": Verdict.RUNTIME_ERROR,
}
_ENDED_FOR = {"memory": Verdict.MEMORY_LIMIT, "disk": Verdict.RUNTIME_ERROR}
"""Verdicts of a program for which its whole copy was ended."""
_ALONE = {"PYTHONNOUSERSITE": "1"}
"""So that Python takes no modules from a home folder; the copy's is the workspace."""


class NotCopied(Exception):
    """The files of the workspace do not make another workspace; that is its own doing."""


class TrialRun:
    """Runs tests one after the other, as far as they matter for the reward.

    Args:
        workspaces: opens the copies.
        archive: a tar of the workspace's files.
        folder: on the host, with the tests' files.
        spec: of the copies.
        how: the tests.

    Attributes:
        checked: the tests that ended.
    """

    def __init__(
        self,
        workspaces: Workspaces,
        archive: bytes,
        folder: Path,
        spec: OpenWorkspace,
        how: GradeWorkspace,
    ) -> None:
        self.checked: list[CheckedTest] = []
        self._workspaces, self._archive, self._folder = workspaces, archive, folder
        self._spec, self._how = spec, how
        self._took_s = self._cpu_s = 0.0

    async def score(self, owner: str, *, most_s: float) -> Score:
        """Run the tests and make the score.

        Args:
            owner: whose turn they take.
            most_s: wall seconds of all of them, and processor seconds of unpacking their copies,
                which the workspace's files decide; those that are left count as failed.

        Raises:
            NotCopied: the workspace cannot be copied.
            WorkspaceFault, JailLost, OSError: a copy cannot be had.
        """
        tests, failed = self._how.tests, set[int]()
        late = ""
        for number, test in enumerate(tests):
            if not still_matters(self._how.policy, number, tests, failed):
                continue
            if self._took_s >= most_s:
                late = f"its tests and the copies for them took {self._took_s:.1f} s in all"
                break
            checked = await self._check(number, test, owner)
            self.checked.append(checked)
            if checked.verdict is not Verdict.ACCEPTED:
                failed.add(number)
        return self._made(late)

    def _made(self, late: str) -> Score:
        tests = self._how.tests
        passed = {one.test for one in self.checked if one.verdict is Verdict.ACCEPTED}
        first = next((one for one in self.checked if one.verdict is not Verdict.ACCEPTED), None)
        verdict, detail = Verdict.ACCEPTED, ""
        if first is not None:
            verdict, detail = first.verdict, f"test {first.test}: {first.detail}"
        elif late:
            verdict, detail = Verdict.TIME_LIMIT, late
        return Score(
            verdict=verdict,
            reward=policy_reward(self._how.policy, tests, passed),
            passed=len(passed),
            total=len(tests),
            cpu_s=self._cpu_s,
            detail=printable(detail),
            run=len(self.checked),
            first_failure=None if first is None else first.test,
            tests=tuple(self.checked),
            tier=self._workspaces.tier or "",
        )

    async def _check(self, number: int, test: ProgramTest, owner: str) -> CheckedTest:
        """Run a test; again if its copy died, which a program may have brought about: the second
        time it has."""
        try:
            verdict, detail, result = await self._run(test, owner)
        except WorkspaceGone:
            try:
                verdict, detail, result = await self._run(test, owner)
            except WorkspaceGone as gone:
                verdict, detail = Verdict.CRASHED_SANDBOX, f"its jail ended: {gone.reason}"
                result = CallResult(status="failed")
        self._took_s += result.wall_s
        self._cpu_s += result.cpu_s
        return CheckedTest(
            test=number,
            verdict=verdict,
            cpu_ms=1000 * result.cpu_s,
            wall_ms=1000 * result.wall_s,
            peak_kb=0,
            output=head(result.stdout.encode()),
            detail=printable(detail),
        )

    async def _run(self, test: ProgramTest, owner: str) -> tuple[Verdict, str, CallResult]:
        try:
            copy = await self._workspaces.open_copy(
                self._archive, self._spec, owner=owner, tests=self._folder
            )
        except InvalidInput as problem:
            raise NotCopied(problem.fix) from None
        self._took_s += copy.jail.cpu_s
        try:
            result = await copy.exec(_call(test, copy))
            verdict, detail = await judged(test, result)
            return verdict, detail, result
        except InvalidInput as problem:  # such as a folder to start in that is not there
            return Verdict.RUNTIME_ERROR, problem.fix, CallResult(status="failed")
        except WorkspaceGone as gone:
            if gone.reason not in _ENDED_FOR:
                raise
            said = f"it held more {gone.reason} than it may"
            return _ENDED_FOR[gone.reason], said, CallResult(status="failed")
        finally:
            await copy.close("closed")


def _call(test: ProgramTest, copy: Workspace) -> ProgramTest:
    """The program with the folder of the tests in place of its name."""
    folder = copy.jail.environment["TESTS"]
    environment = {**_ALONE, "HOME": folder, **test.env}
    argv = None
    if test.argv is not None:
        argv = [part.replace(TESTS, folder) for part in test.argv]
    return test.model_copy(update={"argv": argv, "env": environment})


async def judged(test: ProgramTest, result: CallResult) -> tuple[Verdict, str]:
    """The verdict of a program that ended, and why."""
    if result.status in _AT_LIMIT:
        return _AT_LIMIT[result.status], f"{result.status} after {result.wall_s:.1f} s"
    if test.exit_code is not None and result.exit_code != test.exit_code:
        (said,) = result.stderr.strip().splitlines()[-1:] or [f"exit {result.exit_code}"]
        # That rests on what the program says of itself; a lie there only renames a failure.
        no_memory = said.startswith("MemoryError") or "std::bad_alloc" in said
        return Verdict.MEMORY_LIMIT if no_memory else Verdict.RUNTIME_ERROR, said
    if test.trust_exit_code:
        return Verdict.ACCEPTED, ""
    output = result.stdout.encode()
    for expected in test.outputs:
        size = len(output) + len(expected)
        if await off_loop(size, output_is_right, test.checker, expected, output):
            return Verdict.ACCEPTED, ""
    return Verdict.WRONG_ANSWER, f"printed {result.stdout[:200]!r}"
