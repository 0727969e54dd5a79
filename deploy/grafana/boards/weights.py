"""The weights: who holds which version, what a push costs, and whether it arrived."""

from deploy.grafana.boards.panel import (
    REPLICA,
    Dashboard,
    Panel,
    Query,
    Row,
    mean,
    median_and_p95,
    rate,
    recent,
    series,
)

_WHO = Row(
    "Who holds which version?",
    (
        Panel(
            "Leased replicas",
            "none",
            "Replicas that may be given work, and those that run. They should be the same.",
            (
                Query("leased", "max(ray_millrace_bus_leased_replicas)"),
                Query("running", "count(count by (replica) (ray_millrace_rollout_version))"),
            ),
            kind="number",
            width=8,
            runbook="MillraceReplicaWithoutLease",
        ),
        Panel(
            "Policy version",
            "none",
            "Published, and served as the bus knows it. A line that stays behind is a replica "
            "that pushes fail for.",
            (
                Query("newest", "max(ray_millrace_bus_newest_version)"),
                Query("{{replica}}", series("bus_replica_version", REPLICA)),
            ),
            width=8,
            runbook="MillraceReplicaBehind",
        ),
        Panel(
            "Policy version, as replicas say",
            "none",
            "Differs from the bus's only during a commit.",
            (Query("{{replica}}", series("rollout_version", REPLICA)),),
            width=8,
            runbook="MillraceReplicaBehind",
        ),
    ),
)

_COST = Row(
    "What does a push cost?",
    (
        Panel(
            "Publish to commit, p50 and p95",
            "s",
            "Per replica; generation goes on meanwhile.",
            median_and_p95("bus_push_seconds", REPLICA, "replica"),
            width=8,
        ),
        Panel(
            "Generation paused, mean",
            "s",
            "For a commit, per replica. No token is made in this time.",
            (Query("{{replica}}", mean("bus_paused_seconds", REPLICA, "replica")),),
            width=8,
            runbook="MillracePauseLong",
        ),
        Panel(
            "Bytes sent",
            "Bps",
            "Over links, per replica. Changes alone are sent where a replica holds the base.",
            (Query("{{replica}}", rate("bus_sent_bytes", REPLICA, "replica")),),
            width=8,
        ),
        Panel(
            "Registration to lease, p95",
            "s",
            "How long a new replica takes until it may serve, over the whole history.",
            (
                Query(
                    "{{replica}}",
                    "histogram_quantile(0.95, sum by (le, replica) "
                    f"(ray_millrace_bus_lease_seconds_bucket{{{REPLICA}}}))",
                ),
            ),
            width=8,
        ),
        Panel(
            "Start of a replica",
            "s",
            "Seconds by phase.",
            (Query("{{replica}} {{phase}}", series("rollout_start_seconds", REPLICA)),),
            kind="stack",
            width=8,
        ),
        Panel(
            "Orders carried out, last ten minutes",
            "none",
            "By replicas, and how they ended.",
            (
                Query(
                    "{{order}} {{result}}",
                    recent("rollout_orders", REPLICA, "order, result"),
                ),
            ),
            width=8,
            runbook="MillracePushesFail",
        ),
    ),
)

_ARRIVED = Row(
    "Did it arrive?",
    (
        Panel(
            "Commits, failures, last ten minutes",
            "none",
            "A failed update leaves the old version serving, whole.",
            (
                Query("commits {{replica}}", recent("bus_commits", REPLICA, "replica")),
                Query(
                    "failed: {{phase}} {{replica}}",
                    recent("bus_failures", REPLICA, "replica, phase"),
                    empty="no push failed",
                ),
            ),
            width=8,
            runbook="MillracePushesFail",
        ),
        Panel(
            "Canary gap",
            "none",
            "Logprobs of the replica beside the trainer's for the same tokens. Rounding: 1e-5 in "
            "float32, 0.05 to 0.5 in bfloat16.",
            (Query("{{replica}}", series("bus_canary_gap", REPLICA)),),
            width=8,
            runbook="MillraceCanaryFailed",
        ),
        Panel(
            "Canaries unmoved or unanswered, last ten minutes",
            "none",
            "Commits after which nothing had changed, and canaries without an answer.",
            (
                Query(
                    "unmoved {{replica}}",
                    recent("bus_canary_unmoved", REPLICA, "replica"),
                    empty="every commit changed the canary's logprobs",
                ),
                Query(
                    "no answer {{replica}}",
                    recent("bus_canary_missed", REPLICA, "replica"),
                    empty="every canary was answered",
                ),
            ),
            warn=1,
            width=8,
            runbook="MillraceCanaryUnmoved",
        ),
        Panel(
            "The bus itself, last ten minutes",
            "none",
            "Refused input, late reports, looks for silent members that failed.",
            (
                Query("refused {{what}}", recent("bus_refusals", "", "what"), empty="all was good"),
                Query(
                    "late reports",
                    recent("bus_dropped_reports", ""),
                    empty="every report was waited for",
                ),
                Query(
                    "failed looks",
                    recent("bus_tick_failures", ""),
                    empty="every look was made",
                ),
            ),
            warn=1,
            width=24,
            runbook="MillraceBusAbsent",
        ),
    ),
)

WEIGHTS = Dashboard(
    "weights",
    "Weights",
    "Versions, pushes and proof of delivery.",
    {"replica": "label_values(ray_millrace_rollout_version, replica)"},
    (_WHO, _ARRIVED, _COST),
)
