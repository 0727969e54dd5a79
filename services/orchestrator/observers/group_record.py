"""Records of every sample group, and of some groups token by token."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.orchestrator.core.results import Graded, GroupResult
from services.orchestrator.run_folder.journal import Journal
from services.protocol.trainer import TokenDetail, TrainReport

MOST_TOKENS = 16384
"""Of one trajectory; the rest of a longer one is left out, and said to be."""
MOST_BYTES = 512 * 1024 * 1024
"""Of `tokens.jsonl`, and of `groups.jsonl`; then no more of it is written."""


class GroupRecord:
    """Writes `groups.jsonl` and `tokens.jsonl`.

    A line of `groups.jsonl` is a sample group: its rewards, verdicts, lengths and advantages,
    in choice order. One of `tokens.jsonl` is a trajectory of a group that was chosen to be kept:
    token ids, behaviour logprobs, the trainer's logprobs and advantages, and policy spans.

    Token records are megabytes a train step: a thread writes them during the next step, one step
    at a time.
    """

    def __init__(self, groups: Path, tokens: Path, *, max_bytes: int = MOST_BYTES) -> None:
        self._groups = Journal(groups, max_bytes=max_bytes)
        self._tokens = Journal(tokens, max_bytes=max_bytes)
        self._writing: asyncio.Task[None] | None = None

    def write_groups(
        self, results: Sequence[GroupResult], step: int, report: TrainReport | None = None
    ) -> None:
        """Add groups that were trained in this step, or were filtered before the next one."""
        advantages = dict(report.advantages) if report is not None else {}
        for result in results:
            known = dict(advantages.get(result.group.group_id, ()))
            self._groups.add(_group_line(result, step, known))
        self._groups.flush()

    def write_tokens(self, results: Sequence[GroupResult], report: TrainReport) -> None:
        """Begin to add every trajectory of these groups; `tokens_written` before the next."""
        assert self._writing is None
        work = asyncio.to_thread(self._write_tokens, results, report)
        self._writing = asyncio.create_task(work, name="tokens")

    async def tokens_written(self) -> None:
        """Wait until the file has what `write_tokens` was given, if the disk has space."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
            self._writing = None

    def _write_tokens(self, results: Sequence[GroupResult], report: TrainReport) -> None:
        details = {(one.group_id, one.index): one for one in report.details}
        advantages = dict(report.advantages)
        for result in results:
            known = dict(advantages.get(result.group.group_id, ()))
            for index, graded in enumerate(result.graded):
                detail = details.get((result.group.group_id, index))
                line = trajectory_line(result, index, report.step)
                line |= {"advantage": _rounded(known.get(index))} | _numbers(graded, detail)
                self._tokens.add(line)
        self._tokens.flush()

    async def close(self) -> None:
        """Close the files."""
        try:
            await self.tokens_written()
        finally:
            self._groups.close()
            self._tokens.close()


def _group_line(result: GroupResult, step: int, advantages: dict[int, float]) -> dict[str, Any]:
    graded = result.graded
    named = any(one.score.rewards for one in graded)
    return {
        "group": result.group.group_id,
        "step": step,
        "attempt": result.group.attempt,
        "task_id": result.task.task_id,
        **result.task.labels,
        "rewards": [one.reward for one in graded],
        **({"named_rewards": [one.score.rewards for one in graded]} if named else {}),
        "advantages": [_rounded(advantages.get(index)) for index in range(len(graded))],
        "verdicts": [str(one.score.verdict) for one in graded],
        "lengths": [len(one.trajectory.response_token_ids) for one in graded],
        "oldest_versions": [one.trajectory.oldest_version for one in graded],
        "newest_versions": [one.trajectory.newest_version for one in graded],
        "ungraded": len(result.ungraded),
        "rollout_s": round(result.rollout_s, 4),
        "score_s": round(result.score_s, 4),
    }


def trajectory_line(result: GroupResult, index: int, step: int) -> dict[str, Any]:
    """One trajectory as people read it; `step` is the newest train step."""
    graded = result.graded[index]
    trajectory = graded.trajectory
    return {
        "step": step,
        "group": result.group.group_id,
        "trajectory": index,
        "task_id": result.task.task_id,
        "reward": graded.reward,
        **({"named_rewards": graded.score.rewards} if graded.score.rewards else {}),
        "verdict": str(graded.score.verdict),
        "detail": graded.score.detail,
        "tokens": len(trajectory.response_token_ids),
        "policy_versions": sorted({span.version for span in trajectory.spans}),
        "finish_reason": trajectory.finish_reason,
        "messages": result.task.chat,
        "answer": trajectory.text,
    }


def _numbers(graded: Graded, detail: TokenDetail | None) -> dict[str, Any]:
    """Numbers of each token; `trainer` and `advantages` are null where it has no gradient."""
    trajectory = graded.trajectory
    kept = trajectory.response_token_ids[:MOST_TOKENS]
    numbers: dict[str, Any] = {
        "token_ids": list(kept),
        "sampled": list(trajectory.loss_mask[:MOST_TOKENS]),
        "behaviour": [round(value, 4) for value in trajectory.behaviour_logprobs[:MOST_TOKENS]],
        "spans": [[one.version, one.start, one.end, one.replica_id] for one in trajectory.spans],
    }
    if detail is None:
        return numbers
    trainer: list[float | None] = [None] * len(kept)
    advantages: list[float | None] = [None] * len(kept)
    known = zip(detail.places, detail.logprobs, detail.advantages, strict=True)
    for place, logprob, advantage in known:
        if place < len(kept):
            trainer[place], advantages[place] = _rounded(logprob), _rounded(advantage)
    return numbers | {"trainer": trainer, "advantages": advantages}


def _rounded(value: float | None) -> float | None:
    return None if value is None or value != value else round(value, 4)
