"""A model's own answers to the audited tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millrace_tools.audit.checks.operations import cpu_seconds
from millrace_tools.audit.policy.forwarded_policy import Exchange, ForwardedPolicy
from millrace_tools.audit.subject import Outcome, Subject
from services.protocol.run.task import Task


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Several answers to each task.

    Attributes:
        tasks: in order.
        samples: answers to each.
        outcomes: of the first task's answers, then of the next one's.
        exchanges: the calls of each episode.
        cpu_s: of the environments and graders, an episode.
    """

    tasks: Sequence[Task]
    samples: int
    outcomes: Sequence[Outcome]
    exchanges: Mapping[str, Sequence[Exchange]]
    cpu_s: float = 0.0

    @property
    def groups(self) -> list[list[float]]:
        """Rewards of each task that has any."""
        return [rewards for _, rewards in self.by_task if rewards]

    @property
    def best(self) -> float:
        """1, or the largest reward that was seen."""
        return max([1.0, *(reward for rewards in self.groups for reward in rewards)])

    @property
    def by_task(self) -> Iterator[tuple[Task, list[float]]]:
        """Each task and its rewards."""
        for number, task in enumerate(self.tasks):
            own = self.outcomes[number * self.samples : (number + 1) * self.samples]
            yield task, [one.reward for one in own if one.reward is not None]


async def ask(
    subject: Subject, policy: ForwardedPolicy, tasks: Sequence[Task], samples: int
) -> Asked:
    """Have the model answer each task so often."""
    chosen = [task for task in tasks for _ in range(samples)]
    began = cpu_seconds()
    outcomes = await subject.play_all(chosen, [None] * len(chosen))
    cpu_s = (cpu_seconds() - began) / len(chosen)
    kept = {one.episode: tuple(policy.exchanges[one.episode]) for one in outcomes}
    return Asked(tasks=tasks, samples=samples, outcomes=outcomes, exchanges=kept, cpu_s=cpu_s)
