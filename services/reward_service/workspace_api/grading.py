"""Grading of workspaces: nothing of one is trusted, and its tests come only now.

All that a workspace brings is a tar of its files, taken while none of its programs runs, or the
text of one file. Each test gets a fresh jail with these files, so that no test sees what another
one did, and its output is compared here. A file goes to a grader of the reward service.
"""

import asyncio
import contextlib
import shutil
import time
from dataclasses import replace
from pathlib import Path

from services.observability.log import Log
from services.observability.metrics import WorkspaceMetrics
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.reward.code_graders import (
    CodeGrader,
    PythonAssertsGrader,
    PythonFunctionGrader,
    PythonStdioGrader,
)
from services.protocol.reward.grader import AnyGrader, WeightedGrader
from services.protocol.reward.reward_service import RewardService, Score, ScoreJob, Verdict
from services.protocol.reward.workspace_tests import GradeWorkspace
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.workspace_api.trial_run import NotCopied, TrialRun
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import (
    JailLost,
    NoSuchFile,
    QuotaFull,
    WorkspaceFault,
)
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces

_CODE = (CodeGrader, PythonFunctionGrader, PythonStdioGrader, PythonAssertsGrader)
_FILE_BYTES = 1 << 20
"""Largest file for a grader: answers are not longer either."""
_COPY_MB = 32
"""Space that a copy has beside that of its workspace, for what its tests write."""
_TAR_FACTOR = 2
"""How many times its disk a workspace's tar may be: holes in files take no space on a disk."""
_INFRA = (WorkspaceFault, QuotaFull, JailLost, NotReady, OSError)
_WHOLE = "{completion}"
_LOG = Log("sandboxes")


class Grading:
    """Grades workspaces of one replica.

    Args:
        workspaces: opens the copies.
        reward: has the graders.
        config: bounds the time and how many are graded at once.
    """

    def __init__(
        self, workspaces: Workspaces, reward: RewardService, config: WorkspacesConfig
    ) -> None:
        self._workspaces, self._reward, self._config = workspaces, reward, config
        self._places = asyncio.Semaphore(config.grades_at_a_time)

    async def grade(self, workspace: Workspace, how: GradeWorkspace) -> Score:
        """The score of a workspace.

        Whatever fails here that the workspace's programs did not bring about is `infra_error`,
        without a reward.

        Raises:
            WorkspaceGone: it ended before its files could be taken.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._config.grade_deadline_s), self._places:
                score = await self._score(workspace, how)
        except TimeoutError:
            score = Score.ungraded(f"not graded in {self._config.grade_deadline_s:g} s")
        except _INFRA as problem:
            _LOG.warning("workspace_ungraded", problem=f"{type(problem).__name__}: {problem}")
            score = Score.ungraded(f"{type(problem).__name__}: {problem}", total=len(how.tests))
        WorkspaceMetrics.grades.inc(1, {"verdict": str(score.verdict)})
        return replace(score, job_id=workspace.id, seconds=time.monotonic() - started)

    async def _score(self, workspace: Workspace, how: GradeWorkspace) -> Score:
        if how.grader is not None and how.path is not None:
            return await self._of_file(workspace, how.path, how.grader)
        try:
            archive = await workspace.archive(".", _TAR_FACTOR * workspace.spec.disk_mb << 20)
        except InvalidInput as problem:  # it holds more than it may, or what no tar can
            reason = f"its files cannot be taken: {problem.fix}"
            return replace(Score.failed(Verdict.OUTPUT_LIMIT, reason), total=len(how.tests))
        folder: Path | None = None
        try:
            folder = await asyncio.to_thread(_written, self._workspaces, how.files)
            run = TrialRun(
                self._workspaces, archive, folder, _spec_of_copies(workspace, self._config), how
            )
            return await run.score(workspace.owner, most_s=self._config.grade_run_s)
        except NotCopied as problem:
            reason = f"its files cannot be copied: {problem}"
            return replace(Score.failed(Verdict.RUNTIME_ERROR, reason), total=len(how.tests))
        finally:
            if folder is not None:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _of_file(self, workspace: Workspace, path: str, grader: AnyGrader) -> Score:
        try:
            content = await workspace.read(path, max_bytes=_FILE_BYTES)
        except NoSuchFile:
            return replace(
                Score.failed(Verdict.NO_CODE, f"there is no file {path}"), total=grader.total
            )
        except InvalidInput as problem:
            failed = Score.failed(Verdict.NO_CODE, f"{path}: {problem.fix}")
            return replace(failed, total=grader.total)
        text = content.decode(errors="replace")
        job = ScoreJob(job_id=workspace.id, completion=text, grader=of_a_file(grader))
        (score,) = await self._reward.score([job])
        return score


def of_a_file(grader: AnyGrader) -> AnyGrader:
    """A grader to which code is the whole text: no fence in a comment of a file begins a block."""
    if isinstance(grader, WeightedGrader):
        parts = [
            part.model_copy(update={"grader": of_a_file(part.grader)}) for part in grader.parts
        ]
        return grader.model_copy(update={"parts": parts})
    if not isinstance(grader, _CODE):
        return grader
    code = grader.as_code()
    return code if code.template is not None else code.model_copy(update={"template": _WHOLE})


def _spec_of_copies(workspace: Workspace, config: WorkspacesConfig) -> OpenWorkspace:
    """Those of the workspace, without network; a copy lives no longer than the grading may."""
    lives_s = config.grade_deadline_s
    return workspace.spec.model_copy(
        update={
            "files": {},
            "snapshot": None,
            "network": [],
            "disk_mb": workspace.spec.disk_mb + _COPY_MB,
            "idle_s": lives_s,
            "total_s": lives_s,
        }
    )


def _written(workspaces: Workspaces, files: dict[str, str]) -> Path:
    """A folder with the tests' files; their paths have been checked with the request.

    Raises:
        InvalidInput: two of the paths do not go together.
        OSError: the disk is full.
    """
    folder = workspaces.new_folder()
    try:
        for path, text in files.items():
            place = folder / path
            try:
                place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                place.write_bytes(text.encode())
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                fix = "Another path has a file where this one has a folder."
                raise InvalidInput("files", path, fix) from None
        for place in folder.rglob("*"):
            place.chmod(0o755)  # executable as well; nobody in a jail may write
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        raise
    return folder
