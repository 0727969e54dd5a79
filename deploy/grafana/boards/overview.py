"""The first page: is all well, and if not, which page is next."""

from deploy.grafana.boards.panel import (
    FIRING,
    NODE,
    RUN,
    Dashboard,
    Panel,
    Query,
    Row,
    rate,
    recent,
    series,
)

_WELL = Row(
    "Is it well?",
    (
        Panel(
            "Alerts that fire",
            "none",
            "Each has an entry in the runbook: what it means, how to see it, what to do.",
            (
                Query(
                    "{{alertname}} {{severity}}",
                    f"sum by (alertname, severity) ({FIRING})",
                    empty="nothing is wrong",
                ),
            ),
            warn=1,
            width=24,
        ),
        Panel(
            "Train steps, last ten minutes",
            "none",
            "None while groups are open: go to Loop.",
            (Query("{{run}}", recent("trainer_steps", RUN, "run")),),
            kind="number",
            width=4,
            runbook="MillraceRunStalled",
        ),
        Panel(
            "Ledger imbalance",
            "none",
            "Must be 0. Otherwise go to Ledger.",
            (Query("{{run}}", f"abs({series('run_ledger_imbalance', RUN)})"),),
            bad=1,
            kind="number",
            width=4,
            runbook="MillraceLedgerImbalance",
        ),
        Panel(
            "Leased replicas",
            "none",
            "Fewer than run: go to Weights.",
            (
                Query("leased", "max(ray_millrace_bus_leased_replicas)"),
                Query("running", "count(count by (replica) (ray_millrace_rollout_version))"),
            ),
            kind="number",
            width=4,
            runbook="MillraceReplicaWithoutLease",
        ),
        Panel(
            "Requests that ended well",
            "percentunit",
            "Of those that their client waited for. Below 1: go to Router.",
            (
                Query(
                    "share",
                    rate("router_requests", 'status="ok"')
                    + " / "
                    + rate("router_requests", 'status!="disconnected"'),
                ),
            ),
            warn=0.999,
            bad=0.99,
            kind="number",
            width=4,
            runbook="MillraceRouterErrors",
        ),
        Panel(
            "Oldest answer that waits for its reward",
            "s",
            "Long: go to Rewards.",
            (Query("age", "max(ray_millrace_reward_queue_age_seconds)"),),
            warn=10,
            bad=60,
            kind="number",
            width=4,
            runbook="MillraceRewardQueueOld",
        ),
        Panel(
            "Same-version difference in logprob",
            "none",
            "Trainer against engine. One or more: go to Trainer.",
            (Query("{{run}}", series("trainer_mismatch_max", RUN)),),
            warn=0.5,
            bad=1,
            kind="number",
            width=4,
            runbook="MillraceMismatchLarge",
        ),
    ),
)

_LEARNS = Row(
    "Does it learn?",
    (
        Panel(
            "Reward and held-out pass rate",
            "none",
            "Both should rise.",
            (
                Query("reward {{run}}", series("run_reward", RUN)),
                Query("{{set}} {{run}}", series("run_heldout_pass_rate", RUN)),
            ),
        ),
        Panel(
            "Idle share by cause",
            "percentunit",
            "How much of the time each side waited, and for what.",
            (Query("{{side}}: {{cause}}", rate("run_idle_seconds", RUN, "side, cause")),),
            kind="stack",
            runbook="MillraceTrainerStarved",
        ),
    ),
)

_NODES = Row(
    "Are the machines well?",
    (
        Panel(
            "Targets that answer",
            "none",
            "Ray's metrics agent of each node: 1 while it answers Prometheus.",
            (Query("{{instance}}", f'up{{job=~"millrace.*", {NODE}}}'),),
            warn=1,
            bad=0.5,
            width=8,
            runbook="MillraceTargetDown",
        ),
        Panel(
            "Processors busy",
            "percent",
            "Of each node.",
            (Query("{{instance}}", f"max by (instance) (ray_node_cpu_utilization{{{NODE}}})"),),
            width=8,
        ),
        Panel(
            "Accelerators busy",
            "percent",
            "Each.",
            (
                Query(
                    "{{instance}} {{GpuIndex}}",
                    f"max by (instance, GpuIndex) (ray_node_gpus_utilization{{{NODE}}})",
                    empty="the node has no accelerator",
                ),
            ),
            width=8,
        ),
        Panel(
            "Memory in use",
            "percentunit",
            "Ray ends tasks when a node is full.",
            (
                Query(
                    "{{instance}}",
                    f"max by (instance) (ray_node_mem_used{{{NODE}}} "
                    f"/ ray_node_mem_total{{{NODE}}})",
                ),
            ),
            warn=0.85,
            bad=0.95,
            width=8,
            runbook="MillraceMemoryFull",
        ),
        Panel(
            "Disk free",
            "bytes",
            "Of each node's root, and where the run directory lies.",
            (
                Query("{{instance}} root", f"min by (instance) (ray_node_disk_free{{{NODE}}})"),
                Query("run directory of {{run}}", series("run_disk_free_bytes", RUN)),
            ),
            width=8,
            runbook="MillraceDiskFilling",
        ),
        Panel(
            "Network",
            "Bps",
            "Sent by each node; a push shows as a peak.",
            (Query("{{instance}}", f"max by (instance) (ray_node_network_send_speed{{{NODE}}})"),),
            width=8,
        ),
    ),
)

OVERVIEW = Dashboard(
    "overview",
    "Overview",
    "Is all well, and if not, which page is next.",
    {
        "run": "label_values(ray_millrace_run_step, run)",
        "instance": 'label_values(up{job=~"millrace.*"}, instance)',
    },
    (_WELL, _LEARNS, _NODES),
)
