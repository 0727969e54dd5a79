"""The engines: vLLM's own metrics, which it sends through Ray."""

from deploy.grafana.boards.panel import NODE, Dashboard, Panel, Query, Row, buckets

_BY = "ReplicaId"
_LEGEND = "{{ReplicaId}}"


def _gauge(name: str, by: str = _BY) -> str:
    return f"sum by ({by}) (ray_vllm_{name}{{{NODE}}})"


def _rate(name: str, by: str = _BY) -> str:
    return f"sum by ({by}) (rate(ray_vllm_{name}_total{{{NODE}}}[$__rate_interval]))"


def _p95(name: str) -> tuple[Query, ...]:
    return (
        Query(
            "p50 {{ReplicaId}}",
            f"histogram_quantile(0.5, {buckets(f'ray_vllm_{name}', NODE, _BY)})",
        ),
        Query(
            "p95 {{ReplicaId}}",
            f"histogram_quantile(0.95, {buckets(f'ray_vllm_{name}', NODE, _BY)})",
        ),
    )


_FULL = Row(
    "How full are they?",
    (
        Panel(
            "KV cache in use",
            "percentunit",
            "Near 1 with preemptions: fewer sequences (`max_num_seqs`, the router's `kv_high`), "
            "or a larger cache.",
            (Query(_LEGEND, f"max by ({_BY}) (ray_vllm_kv_cache_usage_perc{{{NODE}}})"),),
            warn=0.9,
            bad=0.97,
            width=8,
            runbook="MillraceKvCacheFull",
        ),
        Panel(
            "Sequences in the batch",
            "none",
            "Flat at `max_num_seqs` is full; far below while the router has work is a replica "
            "that gets too little.",
            (Query(_LEGEND, _gauge("num_requests_running")),),
            width=8,
        ),
        Panel(
            "Sequences in the engine's queue",
            "none",
            "Short, because the router holds requests back. Long: the router's cap is too high.",
            (Query(_LEGEND, _gauge("num_requests_waiting")),),
            width=8,
            runbook="MillraceKvCacheFull",
        ),
        Panel(
            "Preemptions a second",
            "ops",
            "Sequences thrown out of the KV cache and computed again.",
            (Query(_LEGEND, _rate("num_preemptions"), empty="no sequence was thrown out"),),
            width=8,
            runbook="MillraceKvCacheFull",
        ),
        Panel(
            "Prefix cache hits",
            "percentunit",
            "Share of prompt tokens found in the KV cache. Falls to 0 after each commit.",
            (
                Query(
                    _LEGEND,
                    f"{_rate('prefix_cache_hits')} / {_rate('prefix_cache_queries')}",
                    empty="no prompt began like an earlier one by a whole block",
                ),
            ),
            width=8,
        ),
        Panel(
            "Requests ended",
            "ops",
            "By reason; `length` is an answer cut off at its limit, `abort` a client that went.",
            (Query("{{finished_reason}}", _rate("request_success", "finished_reason")),),
            kind="stack",
            width=8,
        ),
    ),
)

_FAST = Row(
    "How fast are they?",
    (
        Panel(
            "Tokens generated a second",
            "none",
            "By replica. Alike replicas should be alike.",
            (Query(_LEGEND, _rate("generation_tokens")),),
            width=8,
        ),
        Panel(
            "Prompt tokens a second",
            "none",
            "By replica, those found in the cache included.",
            (Query(_LEGEND, _rate("prompt_tokens")),),
            width=8,
        ),
        Panel(
            "Between two tokens, p50 and p95",
            "s",
            "A commit's pause shows in the p95.",
            _p95("inter_token_latency_seconds"),
            width=8,
        ),
        Panel(
            "First token, p50 and p95",
            "s",
            "From the engine's first sight of the request.",
            _p95("time_to_first_token_seconds"),
            width=8,
        ),
        Panel(
            "In the engine's queue, p50 and p95",
            "s",
            "Before its first step.",
            _p95("request_queue_time_seconds"),
            width=8,
        ),
        Panel(
            "Whole request, p50 and p95",
            "s",
            "Inside the engine.",
            _p95("e2e_request_latency_seconds"),
            width=8,
        ),
    ),
)

_SHAPE = Row(
    "What do they work on?",
    (
        Panel(
            "Length of answers, p50 and p95",
            "none",
            "In tokens.",
            _p95("request_generation_tokens"),
            width=8,
        ),
        Panel(
            "Length of prompts, p50 and p95",
            "none",
            "In tokens.",
            _p95("request_prompt_tokens"),
            width=8,
        ),
        Panel(
            "Tokens in one step, p50 and p95",
            "none",
            "Prompts and answers together; small steps leave the accelerator idle.",
            _p95("iteration_tokens_total"),
            width=8,
        ),
    ),
)

ENGINES = Dashboard(
    "engines",
    "Engines",
    "vLLM inside every rollout server.",
    {"instance": "label_values(ray_vllm_num_requests_running, instance)"},
    (_FULL, _FAST, _SHAPE),
)
