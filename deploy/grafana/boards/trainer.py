"""The trainer: is the step sound, do trainer and engine agree, are checkpoints written."""

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


def _diagnostics(where: str, *, empty: str = "") -> tuple[Query, ...]:
    return (Query("{{name}} {{run}}", series("trainer_diagnostic", f"{RUN}, {where}"), empty),)


_SOUND = Row(
    "Is the step sound?",
    (
        Panel(
            "Gradient norm",
            "none",
            "Before clipping. Steady is good; rising for steps on end: lower the learning rate.",
            (Query("{{run}}", series("trainer_grad_norm", RUN)),),
            width=8,
        ),
        Panel(
            "Updates left out, last ten minutes",
            "none",
            "Updates whose loss or gradient was not finite. Several in a row are a broken model.",
            (
                Query(
                    "{{run}}",
                    recent("trainer_skipped_updates", RUN, "run"),
                    empty="every update was finite",
                ),
            ),
            warn=1,
            bad=3,
            width=8,
            runbook="MillraceUpdatesSkipped",
        ),
        Panel(
            "Entropy",
            "none",
            "Of the next token, in nats. Falls slowly; nearly 0 early is a collapse.",
            _diagnostics('name="entropy"'),
            width=8,
            runbook="MillraceEntropyCollapse",
        ),
        Panel(
            "Loss, advantage",
            "none",
            "The loss does not measure progress. Advantages near 0: tasks too easy or too hard.",
            _diagnostics('name=~"loss|advantage_mean_abs"'),
            width=8,
        ),
        Panel(
            "Tokens clipped or left out",
            "percentunit",
            "Shares of tokens that the clip acted on, or that carry no gradient.",
            _diagnostics('name=~"clip_fraction.*|left_out.*|truncated_fraction|masked_fraction"'),
            width=8,
        ),
        Panel(
            "Critic",
            "none",
            "With `advantage: gae` alone. Explained variance rises from 0 to 0.3 or more.",
            _diagnostics(
                'name=~"explained_variance|value_.*|return_mean|critic_grad_norm"',
                empty="the run's algorithm has no critic",
            ),
            width=8,
        ),
    ),
)

_AGREE = Row(
    "Do trainer and engine agree?",
    (
        Panel(
            "Same-version difference in logprob",
            "none",
            "The largest. 1e-5 in float32, 0.05 to 0.5 in bfloat16; one and more: the engine holds "
            "other weights, or samples in a way that the trainer cannot reproduce.",
            (Query("{{run}}", series("trainer_mismatch_max", RUN)),),
            warn=0.5,
            bad=1,
            width=8,
            runbook="MillraceMismatchLarge",
        ),
        Panel(
            "By age of the weights",
            "none",
            "Percentiles of the difference for tokens sampled K versions ago. Lag 0 shows "
            "numerics, the others show staleness.",
            _diagnostics('name=~"mismatch_p.*_lag.*"'),
            width=8,
            runbook="MillraceMismatchLarge",
        ),
        Panel(
            "Effective sample size",
            "percentunit",
            "1 when all tokens weigh the same. Below 0.5 a few tokens decide the step.",
            _diagnostics('name="effective_sample_size"'),
            warn=0.9,
            bad=0.5,
            width=8,
            runbook="MillraceEffectiveSampleSizeLow",
        ),
        Panel(
            "Divergences",
            "none",
            "From the behaviour, proximal and reference policies, in nats. Grow with staleness.",
            _diagnostics('name=~"kl_.*"'),
        ),
        Panel(
            "All diagnostics",
            "none",
            "Every number of docs/diagnostics.md; choose lines in the legend.",
            _diagnostics('name!=""'),
        ),
    ),
)

_SPEED = Row(
    "How fast is it?",
    (
        Panel(
            "Train steps, last ten minutes",
            "none",
            "Steps done.",
            (Query("{{run}}", recent("trainer_steps", RUN, "run")),),
            width=8,
            runbook="MillraceRunStalled",
        ),
        Panel(
            "Where its time goes",
            "s",
            "Mean seconds a call by phase.",
            (Query("{{phase}}", mean("trainer_phase_seconds", RUN, "run, phase")),),
            width=8,
        ),
        Panel(
            "Tokens trained a second",
            "none",
            "Response tokens.",
            (Query("{{run}}", rate("trainer_tokens", RUN, "run")),),
            width=8,
        ),
    ),
)

_SAFE = Row(
    "Is it safe?",
    (
        Panel(
            "Checkpoints, last ten minutes",
            "none",
            "Written, failed, or refused when loaded.",
            (Query("{{result}} {{run}}", recent("trainer_checkpoints", RUN, "run, result")),),
            runbook="MillraceCheckpointFailed",
        ),
        Panel(
            "Ranks replaced, last ten minutes",
            "none",
            "Lost ranks are replaced and the newest good checkpoint is loaded.",
            (
                Query(
                    "replaced",
                    recent("trainer_restarts", "", ""),
                    empty="no rank was lost",
                ),
            ),
            warn=1,
            bad=3,
            runbook="MillraceTrainerKeepsDying",
        ),
    ),
)

TRAINER = Dashboard(
    "trainer",
    "Trainer",
    "Health of the optimisation, agreement with the engines, checkpoints.",
    {"run": "label_values(ray_millrace_run_step, run)"},
    (_SOUND, _AGREE, _SPEED, _SAFE),
)
