"""The router: do clients get answers, how soon, and where does their work go."""

from deploy.grafana.boards.panel import (
    NODE,
    Dashboard,
    Panel,
    Query,
    Row,
    median_and_p95,
    quantile,
    rate,
    recent,
    series,
)

_CLIENTS = Row(
    "Do clients get their answers?",
    (
        Panel(
            "Requests a second by how they ended",
            "reqps",
            "`ok`, or the error's name; `disconnected` clients hung up.",
            (
                Query(
                    "{{endpoint}} {{status}}",
                    rate("router_requests", NODE, "endpoint, status"),
                ),
            ),
            width=8,
            runbook="MillraceRouterErrors",
        ),
        Panel(
            "Refused or kept waiting, last ten minutes",
            "none",
            "429 because queues are full or the wait was too long; 503 because no replica had a "
            "lease in time, or because there are as many connections as files may be open.",
            (
                Query(
                    "{{reason}}",
                    recent("router_queue_refusals", NODE, "reason"),
                    empty="no request was refused",
                ),
                Query(
                    "no lease in time",
                    recent("router_unleased_refusals", NODE),
                    empty="every request found a lease",
                ),
                Query(
                    "connections: {{reason}}",
                    recent("router_refused_connections", NODE, "reason"),
                    empty="no connection was refused",
                ),
            ),
            warn=1,
            width=8,
            runbook="MillraceRouterRefuses",
        ),
        Panel(
            "Requests by key",
            "reqps",
            "Every service that asks for keys, by the key's name and the outcome.",
            (
                Query(
                    "{{service}} {{key}} {{outcome}}",
                    rate("access_requests", NODE, "service, key, outcome"),
                    empty="the deployment asks for no keys",
                ),
                Query(
                    "unusable key file: {{service}}",
                    recent("access_reread_failures", NODE, "service"),
                    empty="the key file was always good",
                ),
            ),
            width=8,
            runbook="MillraceKeyFileUnusable",
        ),
    ),
)

_SOON = Row(
    "How soon?",
    (
        Panel(
            "First token, p50 and p95",
            "s",
            "From the request to its first token.",
            median_and_p95("router_first_token_seconds", NODE, "endpoint"),
            width=8,
        ),
        Panel(
            "Whole request, p50 and p95",
            "s",
            "To the last byte. Long answers take long; compare with the phases.",
            median_and_p95("router_request_seconds", NODE, "endpoint"),
            width=8,
        ),
        Panel(
            "By phase, p95",
            "s",
            "`queue` wants more replicas; `first_token` shows prompts; `stream` shows decoding.",
            (Query("{{phase}}", quantile(0.95, "router_phase_seconds", NODE, "phase")),),
            width=8,
        ),
        Panel(
            "Waiting for a replica",
            "none",
            "Requests that every replica is too full for.",
            (Query("{{instance}}", f"sum by (instance) ({series('router_queue', NODE)})"),),
            width=8,
            runbook="MillraceRouterRefuses",
        ),
        Panel(
            "Wait of those that waited, p95",
            "s",
            "From the queue to a replica.",
            (
                Query(
                    "p95",
                    quantile(0.95, "router_queue_seconds", NODE),
                    empty="no request had to wait",
                ),
            ),
            width=8,
        ),
        Panel(
            "Event-loop lag, p99",
            "s",
            "How late the router comes to its work. Above 0.1 s one core is not enough: more "
            "`replicas`.",
            (Query("p99", quantile(0.99, "router_loop_lag_seconds", NODE)),),
            warn=0.03,
            bad=0.1,
            width=8,
            runbook="MillraceRouterLoopLag",
        ),
    ),
)

_WHERE = Row(
    "Where does the work go?",
    (
        Panel(
            "Open sequences by replica",
            "none",
            "In flight, as the router counts them when it chooses.",
            (Query("{{replica}}", f"sum by (replica) ({series('router_in_flight', NODE)})"),),
            width=8,
        ),
        Panel(
            "Cap by replica",
            "none",
            "Sequences at which a replica is full. Swings: raise `probe_s` or lower `cap_step`.",
            (Query("{{replica}}", f"max by (replica) ({series('router_sequence_cap', NODE)})"),),
            width=8,
        ),
        Panel(
            "Imbalance",
            "none",
            "Sequences of the most above the least loaded replica.",
            (Query("{{instance}}", series("router_imbalance", NODE)),),
            width=8,
        ),
        Panel(
            "Choices a second",
            "ops",
            "`hit` keeps the KV cache. Many `spilled`: raise `spill_threshold`.",
            (Query("{{kind}}", rate("router_choices", NODE, "kind")),),
            kind="stack",
            width=8,
        ),
        Panel(
            "Sessions",
            "none",
            "In the table, and those whose calls are kept for training.",
            (
                Query("sessions", f"sum({series('router_sessions', NODE)})"),
                Query(
                    "recorded",
                    f"sum({series('router_recorded_sessions', NODE)})",
                    empty="no session was recorded",
                ),
                Query(
                    "recorded tokens",
                    f"sum({series('router_recorded_tokens', NODE)})",
                    empty="no session was recorded",
                ),
            ),
            width=8,
        ),
        Panel(
            "Recorded calls, records dropped",
            "none",
            "How calls of a session joined, and records that nobody fetched; last ten minutes.",
            (
                Query(
                    "joined: {{kind}}",
                    recent("router_session_calls", NODE, "kind"),
                    empty="no session was recorded",
                ),
                Query(
                    "dropped: {{reason}}",
                    recent("router_sessions_dropped", NODE, "reason"),
                    empty="every record was fetched",
                ),
            ),
            width=8,
        ),
    ),
)

_LOST = Row(
    "What did the loss of a replica cost?",
    (
        Panel(
            "Continued elsewhere, last ten minutes",
            "none",
            "Answers that went on from the journal. Clients notice nothing.",
            (
                Query("{{reason}}", recent("router_failovers", NODE, "reason"), empty="no loss"),
                Query(
                    "begun again from the prompt",
                    recent("router_restarts", NODE),
                    empty="no answer had to begin again",
                ),
            ),
            width=8,
            runbook="MillraceReplicaEjected",
        ),
        Panel(
            "Tokens made twice",
            "none",
            "Made again after a loss, shown once; last ten minutes.",
            (Query("tokens", recent("router_replayed_tokens", NODE), empty="no loss"),),
            width=8,
        ),
        Panel(
            "Ejections, last ten minutes",
            "none",
            "Replicas that got no more work, by who found it out.",
            (
                Query(
                    "{{replica}} by {{by}}",
                    recent("router_ejections", NODE, "replica, by"),
                    empty="no replica was ill",
                ),
            ),
            warn=1,
            width=8,
            runbook="MillraceReplicaEjected",
        ),
        Panel(
            "Looks at replicas",
            "ops",
            "Probes by kind and result.",
            (Query("{{kind}} {{result}}", rate("router_probes", NODE, "kind, result")),),
            width=8,
        ),
        Panel(
            "Interrupted, passed through",
            "none",
            "Requests stopped to go on under new weights, and requests without a journal because "
            "of a field; last ten minutes.",
            (
                Query(
                    "interrupted",
                    recent("router_interruptions", NODE),
                    empty="the run's schedule does not interrupt",
                ),
                Query(
                    "passed through: {{field}}",
                    recent("router_passed_through", NODE, "field"),
                    empty="no client sent such a field",
                ),
            ),
            width=8,
        ),
        Panel(
            "Cut off from others",
            "none",
            "Failed polls of the member table, failed exchanges with other routers (last ten "
            "minutes), and external backends that answer.",
            (
                Query(
                    "member table",
                    recent("router_watch_failures", NODE),
                    empty="the weight bus always answered",
                ),
                Query(
                    "other routers",
                    recent("router_share_failures", NODE),
                    empty="the routers' table always answered",
                ),
                Query(
                    "backend {{backend}}",
                    series("router_backend_up", NODE),
                    empty="the deployment has no external backend",
                ),
            ),
            warn=1,
            width=8,
            runbook="MillraceRouterCutOff",
        ),
    ),
)

ROUTER = Dashboard(
    "router",
    "Router",
    "What clients see, and how the router spreads it over replicas.",
    {"instance": "label_values(ray_millrace_router_sessions, instance)"},
    (_CLIENTS, _SOON, _WHERE, _LOST),
)
