"""Lower bounds: times below which no schedule of a point of the space can do some train steps.

Each is from one thing of which there is only so much; a schedule that reached the largest would
leave the scarcest thing idle at no time. They leave out how things depend on each other: that a
batch is taken at once and its slots become free together, or that of many groups begun at one
time the longest ends late. So a schedule may be ideal and far above them: what can be reached is
in `millrace_tools/simulation/oracle.py`.

- replicas: tokens to sample over tokens a second of all replicas; where nothing may be sampled
  while a batch is trained and pushed, that time besides.
- sandboxes: seconds of grading over sandboxes.
- trainer: its train steps, one after another.
- slots: each group holds an admission slot at least while its longest answer is sampled and
  its last one graded, and of those that may be ahead of the live weights one more while it is
  trained and pushed. Seconds held over slots there are (Little's law).
- staleness: a group trained in step j began after the weights of step j - 1 - max_staleness were
  live, so that max_staleness + 1 steps last at least as long as its sampling, grading,
  training and push. Only where nothing may be older (`wait`). Where a batch is the oldest groups
  (`unfinished: wait`), the groups of a step are given; otherwise the longest are
  taken to be in as few steps as can hold them.
"""

from collections.abc import Sequence

from benchmarks.schedules.cluster import Step
from millrace_tools.simulation.hardware import Hardware, Setup, Work

Bounds = dict[str, float]
"""Seconds, by what there is only so much of."""


def _path(work: Work) -> float:
    """From the start of a group until its last score, with everything free at once."""
    return max(tokens + seconds for tokens, seconds in zip(work.tokens, work.score_s, strict=True))


def _batch_path(batch: Sequence[Work], hardware: Hardware, *, barrier: bool) -> float:
    """From the start of a batch until its last score.

    Answers that are ready after x are graded after x: x plus their grading over all sandboxes.
    """
    jobs = [job for work in batch for job in zip(work.tokens, work.score_s, strict=True)]
    longest = float(max(tokens for tokens, _ in jobs))
    if barrier:
        grading = sum(seconds for _, seconds in jobs) / hardware.sandboxes
        return longest + max(grading, max(seconds for _, seconds in jobs))
    path, later = max(_path(work) for work in batch), 0.0
    for tokens, seconds in sorted(jobs, reverse=True):
        later += seconds
        path = max(path, tokens + later / hardware.sandboxes)
    return path


def bounds(steps: Sequence[Step], setup: Setup) -> Bounds:
    """The least time for these steps, by cause."""
    schedule, hardware, batch_groups = setup.schedule, setup.hardware, setup.batch_groups
    batches = [[setup.trace.group(group) for group in step.groups] for step in steps]
    groups = [work for batch in batches for work in batch]
    after = hardware.train_s + hardware.push_s
    paths = sorted((_path(work) for work in groups), reverse=True)
    found = {
        "replicas": sum(sum(work.tokens) for work in groups) / hardware.sequences
        + (after * len(steps) if schedule.unfinished == "interrupt" else 0.0),
        "sandboxes": sum(sum(work.score_s) for work in groups) / hardware.sandboxes,
        "trainer": hardware.train_s * len(steps),
        "slots": max(
            sum(paths) / schedule.groups_in_flight(batch_groups),
            sum(path + after for path in paths) / schedule.groups_ahead(batch_groups),
        ),
    }
    if schedule.on_stale in ("wait", "withhold"):
        if schedule.unfinished == "wait":
            barrier = schedule.batch_barrier
            spans = [_batch_path(batch, hardware, barrier=barrier) for batch in batches]
        else:
            spans = paths[::batch_groups]
        found["staleness"] = sum(span + after for span in spans) / (schedule.max_staleness + 1)
    return found
