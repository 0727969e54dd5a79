"""The loop of a run: does it learn, how fast, and who waits for whom."""

from deploy.grafana.boards.panel import (
    RUN,
    Dashboard,
    Panel,
    Query,
    Row,
    mean,
    rate,
    recent,
    series,
)

_LEARNS = Row(
    "Does it learn?",
    (
        Panel(
            "Reward",
            "none",
            "Mean reward of the last batch. Flat from the start: look at filtered groups in the "
            "ledger; falling after a rise: entropy and mismatch in the trainer.",
            (Query("{{run}}", series("run_reward", RUN)),),
            width=8,
        ),
        Panel(
            "Held-out pass rate",
            "percentunit",
            "pass@1 on tasks that are never trained on. Rewards that rise while this does not "
            "are learnt by heart, or from a grader with a hole.",
            (Query("{{set}} {{run}}", series("run_heldout_pass_rate", RUN)),),
            width=8,
        ),
        Panel(
            "Train steps",
            "none",
            "Steps done. A flat line while groups are open is a stalled run, or one held up.",
            (Query("{{run}}", series("run_step", RUN)),),
            width=8,
            runbook="MillraceRunStalled",
        ),
        Panel(
            "Held up",
            "none",
            "1 while the run begins nothing because somebody has paused it (`millrace pause`), or "
            "because its ledger or a checkpoint finds no space on its disk.",
            (
                Query(
                    "{{run}}: disk full",
                    series("run_disk_full", RUN),
                    empty="the disk was never full",
                ),
                Query(
                    "{{run}} is paused",
                    series("run_paused", RUN),
                    empty="nobody has paused the run",
                ),
            ),
            warn=1,
            runbook="MillraceRunDiskFull",
        ),
        Panel(
            "Lines not written",
            "none",
            "Of files that only show things, in the last ten minutes: their disk was full, or they "
            "have reached their bound.",
            (
                Query(
                    "{{file}}: {{cause}}",
                    recent("run_records_dropped", RUN, "run, file, cause"),
                    empty="every line was written",
                ),
            ),
            warn=1,
            runbook="MillraceRecordsDropped",
        ),
        Panel(
            "Events that an observer failed at",
            "none",
            "Metrics, traces or records of a sample group are incomplete; the run goes on. Its log "
            "has `observer_failed`. Last ten minutes.",
            (
                Query(
                    "{{observer}} {{run}}",
                    recent("run_observer_failures", RUN, "run, observer"),
                    empty="every observer took in every event",
                ),
            ),
            warn=1,
        ),
    ),
)

_SPEED = Row(
    "How fast is it?",
    (
        Panel(
            "Tokens a second",
            "none",
            "Generated, and trained on. Filtered groups and dropped ones are the difference.",
            (
                Query("generated {{run}}", rate("run_tokens", RUN, "run")),
                Query("trained {{run}}", rate("trainer_tokens", RUN, "run")),
            ),
            width=8,
        ),
        Panel(
            "Where a train step's time goes",
            "s",
            "Mean seconds by phase. The longest is what to make faster.",
            (
                Query(
                    "{{phase}}",
                    mean("run_phase_seconds", RUN, "run, phase"),
                ),
            ),
            width=8,
        ),
        Panel(
            "Idle share by cause",
            "percentunit",
            "How much of the time each side waited, and for what. The trainer waiting for rollouts "
            "wants more replicas or more staleness; rollouts waiting for the trainer want fewer.",
            (Query("{{side}}: {{cause}}", rate("run_idle_seconds", RUN, "run, side, cause")),),
            kind="stack",
            width=8,
            runbook="MillraceTrainerStarved",
        ),
    ),
)

_SCHEDULE = Row(
    "Is the schedule right?",
    (
        Panel(
            "Staleness",
            "none",
            "Largest staleness in the last batch, and the run's bound. Above the bound is a fault.",
            (
                Query("last batch {{run}}", series("run_staleness_max", RUN)),
                Query("bound {{run}}", series("run_staleness_bound", RUN)),
            ),
            width=8,
            runbook="MillraceStalenessOverBound",
        ),
        Panel(
            "Groups open, and the window",
            "none",
            "Admitted and not closed. The window is there with `schedule.adaptive` alone.",
            (
                Query("open {{run}}", series("run_groups_in_flight", RUN)),
                Query(
                    "window {{run}}",
                    series("run_admission_window", RUN),
                    empty="the run's schedule is not adaptive",
                ),
            ),
            width=8,
            runbook="MillraceRunStalled",
        ),
        Panel(
            "Replicas wanted",
            "none",
            "Rollout servers that there is work for. Above those leased: raise max_replicas.",
            (Query("{{run}}", series("run_replicas_wanted", RUN)),),
            width=8,
        ),
        Panel(
            "Length bias",
            "percentunit",
            "Mean length of what is trained over what is sampled, less one. Away from 0 the "
            "schedule prefers short or long answers.",
            (Query("{{run}}", series("run_length_bias", RUN)),),
            width=8,
            runbook="MillraceLengthBias",
        ),
        Panel(
            "Tokens too old for a gradient",
            "none",
            "Tokens a second that `on_stale: mask` takes out of the loss.",
            (
                Query(
                    "{{run}}",
                    rate("run_masked_tokens", RUN, "run"),
                    empty="the run does not mask, or no token was too old",
                ),
            ),
            width=8,
        ),
        Panel(
            "Rollouts interrupted at a batch's end",
            "none",
            "In the last ten minutes. Missed ones went on under older weights.",
            (
                Query(
                    "interrupted {{run}}",
                    recent("run_interruptions", RUN, "run"),
                    empty="the run's schedule does not interrupt",
                ),
                Query(
                    "missed {{run}}",
                    recent("run_interruptions_missed", RUN, "run"),
                    empty="sessions of agents alone can be missed",
                ),
            ),
            width=8,
        ),
    ),
)

_FAULTS = Row(
    "What went wrong?",
    (
        Panel(
            "Failures and recoveries, last ten minutes",
            "none",
            "Rollout attempts that failed by reason, and how often the trainer was brought back.",
            (
                Query(
                    "{{reason}}",
                    recent("run_rollout_failures", RUN, "run, reason"),
                    empty="no rollout failed",
                ),
                Query(
                    "trainer brought back {{run}}",
                    recent("run_recoveries", RUN, "run"),
                    empty="no trainer was lost",
                ),
            ),
            warn=1,
            width=8,
            runbook="MillraceTrainerKeepsDying",
        ),
        Panel(
            "Runs that ended, last ten minutes",
            "none",
            "A failed one says why in `millrace status`; go on with `millrace run --resume`.",
            (
                Query(
                    "{{state}} {{run}}",
                    recent("run_ended", RUN, "run, state"),
                    empty="no run has ended",
                ),
            ),
            width=8,
            runbook="MillraceRunFailed",
        ),
        Panel(
            "Evaluations not made, last steps that failed",
            "none",
            "In the last ten minutes. A run goes on without an evaluation; what failed at its end "
            "is in its summary.",
            (
                Query(
                    "evaluation: {{reason}}",
                    recent("run_evaluation_failures", RUN, "run, reason"),
                    empty="every evaluation was made",
                ),
                Query(
                    "at the end: {{part}}",
                    recent("run_end_failures", RUN, "run, part"),
                    empty="nothing failed at the run's end",
                ),
            ),
            warn=1,
            width=8,
            runbook="MillraceEvaluationNotMade",
        ),
        Panel(
            "Figures that did not reach a tracker",
            "none",
            "In the last ten minutes, by tracker: it failed (error), does not keep up (full) or "
            "hung at the end (late). The run goes on; metrics.jsonl has everything.",
            (
                Query(
                    "{{tracker}}: {{reason}}",
                    recent("run_tracker_losses", RUN, "run, tracker, reason"),
                    empty="no tracker lost anything",
                ),
            ),
            warn=1,
        ),
    ),
)

LOOP = Dashboard(
    "loop",
    "Loop",
    "A run from prompts to weights: learning, speed, idle time and its causes.",
    {"run": "label_values(ray_millrace_run_step, run)"},
    (_LEARNS, _SPEED, _SCHEDULE, _FAULTS),
)
