"""The ledger: where every admitted sample group went."""

from deploy.grafana.boards.panel import RUN, Dashboard, Panel, Query, Row, rate, recent, series

_BALANCE = Row(
    "Does it balance?",
    (
        Panel(
            "Ledger imbalance",
            "none",
            "Admitted less trained, filtered, expired, failed and in flight. Must be 0 always.",
            (Query("{{run}}", f"abs({series('run_ledger_imbalance', RUN)})"),),
            bad=1,
            kind="number",
            width=8,
            runbook="MillraceLedgerImbalance",
        ),
        Panel(
            "Groups in flight",
            "none",
            "Admitted and not closed.",
            (Query("{{run}}", series("run_groups_in_flight", RUN)),),
            kind="number",
            width=8,
        ),
        Panel(
            "Groups closed",
            "none",
            "Since the orchestrator started.",
            (
                Query(
                    "{{status}} {{run}}",
                    f"sum by (run, status) (ray_millrace_run_groups_total{{{RUN}}})",
                ),
            ),
            kind="number",
            width=8,
        ),
    ),
)

_FLOW = Row(
    "Where do groups go?",
    (
        Panel(
            "Groups closed, last ten minutes",
            "none",
            "By how they ended. `filtered` groups had equal rewards and teach nothing; `expired` "
            "ones grew too old; `failed` ones could not be rolled out or graded.",
            (Query("{{status}} {{run}}", recent("run_groups", RUN, "run, status")),),
            kind="stack",
            runbook="MillraceGroupsFailing",
        ),
        Panel(
            "Share that was trained",
            "percentunit",
            "Of the groups closed in the last ten minutes. Low: tasks are too easy or too hard, "
            "or groups fail or expire.",
            (
                Query(
                    "{{run}}",
                    recent("run_groups", f'{RUN}, status="trained"', "run")
                    + " / "
                    + recent("run_groups", RUN, "run"),
                ),
            ),
            runbook="MillraceNothingToLearn",
        ),
        Panel(
            "Generated and trained tokens",
            "none",
            "Tokens a second in and out of the ledger.",
            (
                Query("generated {{run}}", rate("run_tokens", RUN, "run")),
                Query("trained {{run}}", rate("trainer_tokens", RUN, "run")),
            ),
        ),
        Panel(
            "Places filled again",
            "none",
            "Groups of equal rewards whose place was given to another, in the last ten minutes.",
            (
                Query(
                    "{{outcome}} {{run}}",
                    recent("run_refills", RUN, "run, outcome"),
                    empty="the run has no `schedule.dynamic_sampling`",
                ),
            ),
        ),
        Panel(
            "Groups opened again",
            "none",
            "Trained after the checkpoint that a lost trainer came back with, so they are trained "
            "again. `run_groups` counts them each time. Last ten minutes.",
            (
                Query(
                    "{{run}}",
                    recent("run_groups_reopened", RUN, "run"),
                    empty="no trainer was lost",
                ),
            ),
        ),
    ),
)

_LOST = Row(
    "Why were they lost?",
    (
        Panel(
            "Rollout attempts that failed",
            "none",
            "By reason, in the last ten minutes. The group is tried again.",
            (
                Query(
                    "{{reason}} {{run}}",
                    recent("run_rollout_failures", RUN, "run, reason"),
                    empty="no rollout failed",
                ),
            ),
            warn=1,
            runbook="MillraceGroupsFailing",
        ),
        Panel(
            "Trajectories without a reward",
            "none",
            "Left out because grading itself failed, in the last ten minutes. See Rewards.",
            (
                Query(
                    "{{run}}",
                    recent("run_ungraded", RUN, "run"),
                    empty="every trajectory was graded",
                ),
            ),
            warn=1,
            runbook="MillraceRewardInfraErrors",
        ),
    ),
)

LEDGER = Dashboard(
    "ledger",
    "Ledger",
    "The account of every admitted sample group.",
    {"run": "label_values(ray_millrace_run_step, run)"},
    (_BALANCE, _FLOW, _LOST),
)
