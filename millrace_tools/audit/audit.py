"""All checks of an audit, one after the other."""

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

from millrace_tools.audit.answers import Candidate, always, turns
from millrace_tools.audit.checks.asked import ask
from millrace_tools.audit.checks.faults import FAULTS, fault_finding
from millrace_tools.audit.checks.known import KNOWN, Answer, known_findings, read_labelled_answers
from millrace_tools.audit.checks.learnable import (
    LEARNABLE,
    NOISE,
    learnable_findings,
    noise_finding,
    not_asked,
)
from millrace_tools.audit.checks.operations import OPERATIONS, operation_findings
from millrace_tools.audit.checks.repeats import REPEATS, repeat_findings
from millrace_tools.audit.checks.replicas import (
    REPLICAS,
    Plan,
    Trainer,
    not_simulated,
    replica_finding,
)
from millrace_tools.audit.checks.reward import REWARD, reward_findings
from millrace_tools.audit.checks.search import SEARCH, Search, not_searched
from millrace_tools.audit.checks.surroundings import SURROUNDINGS, surrounding_findings
from millrace_tools.audit.checks.tokens import TOKENS, token_findings
from millrace_tools.audit.checks.training import TRAINING, TrainedRun, not_trained, training_finding
from millrace_tools.audit.endpoint import judge_of
from millrace_tools.audit.findings import AuditReport, Finding
from millrace_tools.audit.opened import opened
from millrace_tools.audit.policy.forwarded_policy import ForwardedPolicy, forwarded
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.audit.second_opinion import SecondOpinion, known_answers
from millrace_tools.audit.subject import Subject
from millrace_tools.audit.trainable import trainable
from millrace_tools.deploy.run_file import read_run_file
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from services.protocol.strict import nearest

OF_MODEL = (*LEARNABLE, *TOKENS, REPLICAS, SEARCH)
_NOT_SAID = (
    *("function", "run_file", "only", "out"),
    *("environment", "task_file", "arguments", "act", "prompt"),  # the run file has them by now
)
CHECKS = (*REWARD, *KNOWN, *REPEATS, *SURROUNDINGS, *OPERATIONS, FAULTS, *OF_MODEL, TRAINING)


class Audit:
    """One audit.

    Args:
        arguments: the options of the command.
        on_finding: called with each finding as it is made.

    Raises:
        InvalidInput: there is no such check, or the run file cannot be used.
    """

    def __init__(
        self, arguments: argparse.Namespace, on_finding: Callable[[Finding], None]
    ) -> None:
        self._arguments, self._on_finding = arguments, on_finding
        self._only = _chosen(arguments.only)
        self._run = read_run_file(arguments.run_file)
        self._findings: list[Finding] = []
        self._episodes = self._tasks = 0
        self._plan: Plan | None = None

    @property
    def wants_training(self) -> bool:
        """Whether a model is to be trained."""
        return self._arguments.train_steps is not None and self._wants(TRAINING)

    async def play(self) -> None:
        """All checks that play episodes.

        Raises:
            InvalidInput: the run file, or a file that an option names, cannot be used.
        """
        async with ScriptedPolicy() as policy, opened(self._arguments, policy) as (tasks, subject):
            self._tasks = len(tasks)
            await self._scripted(subject, policy.url, tasks)
            self._episodes += subject.episodes
        if self._arguments.url is None:
            self._add([not_asked(), not_searched(), not_simulated()])
        elif self._wants(*OF_MODEL):
            async with (
                forwarded(self._arguments) as model,
                opened(self._arguments, model) as (tasks, subject),
            ):
                await self._asked(subject, model, tasks)
                self._episodes += subject.episodes

    def ended(self, trained: Sequence[TrainedRun] | str | None) -> tuple[AuditReport, str]:
        """The report, and a run file to train with.

        Args:
            trained: see `training_finding`; None: nobody asked for it.
        """
        self._add([not_trained() if trained is None else training_finding(trained)])
        report = AuditReport(
            millrace=version("millrace"),
            made_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            subject=self._run.name,
            command=self._command,
            tasks=self._tasks,
            episodes=self._episodes,
            findings=tuple(self._findings),
        )
        return report, trainable(self._run, report, self._plan)

    async def _scripted(self, subject: Subject, policy_url: str, tasks: Sequence[Task]) -> None:
        """Checks with answers of known worth."""
        given = self._arguments
        table = TaskTable(self._run)
        answers = read_labelled_answers(given.answers, table) if given.answers else []
        good = {one.task_id: one.good[0] for one in answers if one.good}
        known = [_known(task, good.get(task.task_id)) for task in tasks]
        if self._wants(*REWARD):
            self._add(await reward_findings(subject, tasks, given.seed))
        if self._wants(*KNOWN):
            self._add(await known_findings(subject, answers, table))
        if self._wants(*REPEATS):
            self._add(await repeat_findings(subject, tasks, known))
        if self._wants(*SURROUNDINGS):
            self._add(await surrounding_findings(subject, policy_url, tasks, known))
        if self._wants(*OPERATIONS):
            self._add(await operation_findings(subject, tasks, given.episodes))
        if self._wants(FAULTS):
            self._add([await fault_finding(subject, tasks, known)])

    async def _asked(self, subject: Subject, model: ForwardedPolicy, tasks: Sequence[Task]) -> None:
        """Checks with answers of a model."""
        given = self._arguments
        asked = await ask(subject, model, tasks, given.samples)
        self._add(learnable_findings(asked, self._run))
        self._add(token_findings(asked.exchanges, await model.max_model_len()))
        if self._wants(REPLICAS):
            finding, self._plan = replica_finding(asked, self._run, _trainer(given))
            self._add([finding])
        if self._wants(NOISE):
            self._add([await noise_finding(subject, model, asked)])
        if self._wants(SEARCH) and given.tries:
            opinion = SecondOpinion(
                judge_of(given, given.model or self._run.model), subject.are_equal
            )
            try:
                search = Search(subject, model, opinion, given.tries)
                self._add(await search.findings(tasks, asked.best))
            finally:
                await opinion.aclose()

    def _wants(self, *checks: str) -> bool:
        """Whether one of these is asked for."""
        return not self._only.isdisjoint(checks)

    def _add(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            if not self._wants(one.check):
                continue
            reproduce = f"{self._command} --only {one.check}"
            self._findings.append(one.model_copy(update={"reproduce": reproduce}))
            self._on_finding(one)

    @property
    def _command(self) -> str:
        """The audit's command line, with all options that have a value."""
        words = ["millrace", "audit", str(self._arguments.run_file)]
        for name, value in vars(self._arguments).items():
            if name not in _NOT_SAID and value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words)


def _chosen(only: Sequence[str] | None) -> set[str]:
    """The checks that `--only` names, each by its name or the name's first part.

    Raises:
        InvalidInput: there is no such check.
    """
    chosen = set() if only else set(CHECKS)
    for one in only or ():
        found = {check for check in CHECKS if one in (check, check.partition(".")[0])}
        if not found:
            fix = f"There are {', '.join(CHECKS)}{nearest(one, CHECKS)}."
            raise InvalidInput("--only", one, fix)
        chosen |= found
    return chosen


def _trainer(arguments: argparse.Namespace) -> Trainer | None:
    if arguments.step_seconds is None:
        return None
    return Trainer(
        step_s=arguments.step_seconds,
        tokens_per_s=arguments.tokens_per_second,
        slots=arguments.slots,
    )


def _known(task: Task, good: Answer | None) -> Candidate:
    """A right answer where one is known, and else one that says something."""
    if good is not None:
        return Candidate("good", turns(good))
    known = known_answers(task)
    if known:
        return Candidate("known", always(known[0]))
    return Candidate("some words", always("an answer"))
