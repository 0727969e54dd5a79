"""The reward service: are answers graded, how soon, and is the sandbox well."""

from deploy.grafana.boards.panel import (
    NODE,
    Dashboard,
    Panel,
    Query,
    Row,
    median_and_p95,
    rate,
    recent,
    series,
)

_GRADED = Row(
    "Are answers graded?",
    (
        Panel(
            "Verdicts a second",
            "ops",
            "Of answers. `infra_error` is never a reward: the trajectory is left out.",
            (
                Query(
                    "{{verdict}} {{language}}",
                    rate("reward_verdicts", NODE, "verdict, language"),
                ),
            ),
            kind="stack",
            width=8,
        ),
        Panel(
            "Share of answers not graded",
            "percentunit",
            "`infra_error` and `crashed_sandbox` of the verdicts of the last ten minutes.",
            (
                Query(
                    "{{verdict}}",
                    recent(
                        "reward_verdicts",
                        f'{NODE}, verdict=~"infra_error|crashed_sandbox"',
                        "verdict",
                    )
                    + f" / on () group_left () {recent('reward_verdicts', NODE)}",
                    empty="every answer was graded",
                ),
            ),
            warn=0.001,
            bad=0.01,
            width=8,
            runbook="MillraceRewardInfraErrors",
        ),
        Panel(
            "Tests a second",
            "ops",
            "Runs of answers on single tests.",
            (Query("{{verdict}} {{language}}", rate("reward_tests", NODE, "verdict, language")),),
            kind="stack",
            width=8,
        ),
    ),
)

_SOON = Row(
    "How soon?",
    (
        Panel(
            "One answer, p50 and p95",
            "s",
            "From the job to its score, waiting included.",
            median_and_p95("reward_grading_seconds", NODE, "language"),
            width=8,
        ),
        Panel(
            "Work that waits for a core",
            "none",
            "Pieces of work, and their estimated CPU-seconds.",
            (
                Query("pieces", f"sum({series('reward_queue', NODE)})"),
                Query("CPU-seconds", f"sum({series('reward_queued_cpu_seconds', NODE)})"),
            ),
            width=8,
            runbook="MillraceRewardQueueOld",
        ),
        Panel(
            "Age of the oldest",
            "s",
            "Above the time that a batch takes to sample, grading holds up training: more `slots` "
            "or `replicas`.",
            (
                Query(
                    "{{instance}}",
                    f"max by (instance) ({series('reward_queue_age_seconds', NODE)})",
                ),
            ),
            warn=10,
            bad=60,
            width=8,
            runbook="MillraceRewardQueueOld",
        ),
        Panel(
            "Cores busy with answers",
            "none",
            "CPU-seconds a second of the answers' own processes.",
            (Query("{{language}}", rate("reward_cpu_seconds", NODE, "language")),),
            kind="stack",
            width=8,
        ),
        Panel(
            "Verdicts from the cache",
            "ops",
            "Answers that had been graded before.",
            (
                Query(
                    "hits",
                    rate("reward_cache_hits", NODE),
                    empty="no answer came twice",
                ),
            ),
            width=8,
        ),
        Panel(
            "Compilations a second",
            "ops",
            "By result.",
            (
                Query(
                    "{{language}} {{result}}",
                    rate("reward_compiles", NODE, "language, result"),
                    empty="the run's language is not compiled",
                ),
            ),
            width=8,
        ),
    ),
)

_SANDBOX = Row(
    "Is the sandbox well?",
    (
        Panel(
            "Replicas by tier",
            "none",
            "A has namespaces, B has not. All replicas should have the same.",
            (Query("tier {{tier}}", f"sum by (tier) ({series('reward_tier', NODE)})"),),
            kind="number",
            width=8,
            runbook="MillraceSandboxTiersDiffer",
        ),
        Panel(
            "Stopped by a layer of the jail, last ten minutes",
            "none",
            "Answers that tried what they may not. A rise is a policy that learns to attack the "
            "grader: read its answers.",
            (
                Query(
                    "{{layer}}",
                    recent("reward_denials", NODE, "layer"),
                    empty="no answer tried what it may not",
                ),
            ),
            width=8,
        ),
        Panel(
            "Sandboxes lost, last ten minutes",
            "none",
            "Sandboxes and helpers started anew, and jobs run again for it.",
            (
                Query(
                    "sandboxes",
                    recent("reward_slot_restarts", NODE),
                    empty="no sandbox was lost",
                ),
                Query(
                    "helpers",
                    recent("reward_helper_restarts", NODE),
                    empty="no helper was lost",
                ),
                Query("runs again", recent("reward_retries", NODE), empty="no sandbox was lost"),
                Query(
                    "HTTP requests refused",
                    recent("reward_refusals", NODE),
                    empty="the queue was never full",
                ),
            ),
            warn=1,
            bad=10,
            width=8,
            runbook="MillraceSandboxesLost",
        ),
    ),
)

REWARDS = Dashboard(
    "rewards",
    "Rewards",
    "Verdicts, the queue before them, and the sandbox.",
    {"instance": "label_values(ray_millrace_reward_tier, instance)"},
    (_GRADED, _SOON, _SANDBOX),
)
