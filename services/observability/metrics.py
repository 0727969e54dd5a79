"""Every metric of Millrace, exported by Ray's own Prometheus endpoint as `ray_millrace_*`.

Ray drops a gauge that has not been set for about twenty seconds, so gauges keep their last
values and one thread per process sets them again.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ray.util import metrics as ray_metrics

from services.observability.log import Log

GAUGE_REFRESH_S = 5.0
_log = Log("observability")

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300]


class Counter(ray_metrics.Counter):
    """A counter that takes 0, which Ray's own refuses."""

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Add `value`, 0 or more."""
        if value:
            super().inc(value, tags or {})


class Gauge:
    """A gauge that stays visible: its last value is set again every few seconds."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...] = ()) -> None:
        self._gauge = ray_metrics.Gauge(name, description, tag_keys)
        self._last: dict[tuple[tuple[str, str], ...], float] = {}
        self._read: Callable[[], float] | None = None
        self._lock = threading.Lock()
        _GAUGES.append(self)

    @property
    def info(self) -> dict[str, Any]:
        """Name, description and tag keys, as Ray's own metrics say them."""
        return self._gauge.info

    def set(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Set the value for these tags."""
        key = tuple(sorted((tags or {}).items()))
        with self._lock:
            self._last[key] = value
        self._gauge.set(value, dict(key))
        _start_refresh()

    def forget(self, tags: Mapping[str, str]) -> None:
        """Let the series of these tags disappear, for a member that is gone."""
        with self._lock:
            self._last.pop(tuple(sorted(tags.items())), None)

    def keep_only(self, tags: Mapping[str, str]) -> None:
        """Let every series disappear that does not have these tags."""
        kept = set(tags.items())
        with self._lock:
            self._last = {key: value for key, value in self._last.items() if kept <= set(key)}

    def follow(self, read: Callable[[], float]) -> None:
        """Ask for the value at every refresh, in a thread of its own, from now on.

        For what changes without an event, as an age does.
        """
        self._read = read
        self.set(read())

    def refresh(self) -> None:
        """Set every remembered value again, and the followed one anew."""
        if self._read is not None:
            self.set(self._read())
        with self._lock:
            values = list(self._last.items())
        for key, value in values:
            self._gauge.set(value, dict(key))


_GAUGES: list[Gauge] = []
_refresh_lock = threading.Lock()
_refresh_thread: threading.Thread | None = None


def _start_refresh() -> None:
    global _refresh_thread
    with _refresh_lock:
        if _refresh_thread is None:
            _refresh_thread = threading.Thread(target=_refresh, name="gauges", daemon=True)
            _refresh_thread.start()


def _refresh() -> None:
    pause = threading.Event()
    while not pause.wait(GAUGE_REFRESH_S):
        refresh_all()


def refresh_all() -> None:
    """Set every gauge of the process again; one that cannot be read costs no other."""
    for gauge in _GAUGES:
        try:
            gauge.refresh()
        except Exception:  # noqa: BLE001  the edge of the thread's loop
            _log.exception("gauge_not_read", gauge=gauge.info["name"])


def _counter(name: str, description: str, *tags: str) -> Counter:
    return Counter(f"millrace_{name}", description, tags)


def _gauge(name: str, description: str, *tags: str) -> Gauge:
    return Gauge(f"millrace_{name}", description, tags)


def _seconds(name: str, description: str, *tags: str) -> ray_metrics.Histogram:
    return ray_metrics.Histogram(f"millrace_{name}", description, _SECONDS, tags)


class RouterMetrics:
    """Declared by the router."""

    requests = _counter("router_requests", "Requests by how they ended", "endpoint", "status")
    choices = _counter("router_choices", "Replica choices: hit, new, moved, spilled, free", "kind")
    failovers = _counter("router_failovers", "Open requests continued elsewhere", "reason")
    interruptions = _counter("router_interruptions", "Requests stopped to go on under new weights")
    restarts = _counter("router_restarts", "Cut choices begun again from the prompt")
    replayed_tokens = _counter(
        "router_replayed_tokens", "Tokens made again after a loss, shown once"
    )
    passed_through = _counter(
        "router_passed_through", "Requests answered without a journal", "field"
    )
    unleased_refusals = _counter("router_unleased_refusals", "Requests that found no lease in time")
    watch_failures = _counter("router_watch_failures", "Polls of the member table that failed")
    in_flight = _gauge("router_in_flight", "Sequences of this router on a replica", "replica")
    sessions = _gauge("router_sessions", "Sessions in the table")
    imbalance = _gauge("router_imbalance", "Sequences on the fullest minus the emptiest replica")
    ejections = _counter("router_ejections", "Replicas given no more work", "replica", "by")
    probes = _counter("router_probes", "Looks at a replica", "kind", "result")
    cap = _gauge("router_sequence_cap", "Sequences in flight at which it is full", "replica")
    queue = _gauge("router_queue", "Requests waiting for a replica")
    queue_refusals = _counter("router_queue_refusals", "Requests that could not wait", "reason")
    refused_connections = _counter(
        "router_refused_connections", "Client connections refused", "reason"
    )
    queue_wait = _seconds("router_queue_seconds", "Wait for a replica, of those that waited")
    share_failures = _counter("router_share_failures", "Failed exchanges with other routers")
    session_calls = _counter("router_session_calls", "Recorded calls by how they joined", "kind")
    session_cuts = _counter(
        "router_session_cuts", "Calls that go on from an answer without its tokens", "reason"
    )
    sessions_dropped = _counter("router_sessions_dropped", "Records dropped unread", "reason")
    sessions_not_written = _counter("router_sessions_not_written", "Failed writes to sessions_dir")
    rewards_refused = _counter("router_rewards_refused", "Rewards that no session took", "reason")
    backend_up = _gauge("router_backend_up", "1 while an external backend answers", "backend")
    recorded_sessions = _gauge("router_recorded_sessions", "Sessions whose calls are kept")
    recorded_tokens = _gauge("router_recorded_tokens", "Token ids kept of recorded sessions")
    first_token = _seconds("router_first_token_seconds", "Request to first token", "endpoint")
    duration = _seconds("router_request_seconds", "Request to last byte", "endpoint")
    phase = _seconds("router_phase_seconds", "queue, first_token, stream", "phase")
    loop_lag = _seconds("router_loop_lag_seconds", "How late the event loop comes to its work")


class AccessMetrics:
    """Declared by every service that asks for keys."""

    requests = _counter("access_requests", "Requests by key", "service", "key", "outcome")
    reread_failures = _counter("access_reread_failures", "Unusable key files met", "service")


class BusMetrics:
    """Declared by the weight bus."""

    commits = _counter("bus_commits", "Versions committed on replicas", "replica")
    failures = _counter("bus_failures", "Updates that failed", "replica", "phase")
    tick_failures = _counter("bus_tick_failures", "Looks for silent members that failed")
    relay_failures = _counter("bus_relay_failures", "Starts and ends of relays that failed")
    dropped_reports = _counter("bus_dropped_reports", "Reports that came too late")
    refusals = _counter("bus_refusals", "Input that the bus refused", "what")
    newest_version = _gauge("bus_newest_version", "Highest version published")
    replica_version = _gauge("bus_replica_version", "Version a replica serves", "replica")
    leased = _gauge("bus_leased_replicas", "Replicas that may be given work")
    lent = _gauge("bus_lent_replicas", "Replicas whose devices a trainer has for its turn")
    push = _seconds("bus_push_seconds", "Publish to commit, per replica", "replica")
    lease = _seconds("bus_lease_seconds", "Registration to first lease", "replica")
    paused = _seconds("bus_paused_seconds", "Generation stopped for a commit", "replica")
    canary_gap = _gauge("bus_canary_gap", "Largest logprob gap to the trainer, nats", "replica")
    canary_mean_gap = _gauge("bus_canary_mean_gap", "Mean of these gaps, nats", "replica")
    canary_shifts = _counter("bus_canary_shifts", "Canary gaps that grew and were taken as good")
    canary_unmoved = _counter("bus_canary_unmoved", "Commits that changed no output", "replica")
    canary_missed = _counter("bus_canary_missed", "Canaries without an answer", "replica")
    sent_bytes = _counter("bus_sent_bytes", "Weight bytes sent over links", "replica")
    loan_failures = _counter(
        "bus_loan_failures", "Orders about shared devices that failed", "replica", "order"
    )
    loans_expired = _counter("bus_loans_expired", "Loans of devices whose trainer fell silent")


class RewardMetrics:
    """Declared by the reward service."""

    verdicts = _counter("reward_verdicts", "Answers graded", "verdict", "language")
    tests = _counter("reward_tests", "Tests run", "verdict", "language")
    cache_hits = _counter("reward_cache_hits", "Verdicts taken from the cache")
    cpu_s = _counter("reward_cpu_seconds", "Processor time of answers' own processes", "language")
    compiles = _counter("reward_compiles", "Compilations", "language", "result")
    retries = _counter("reward_retries", "Work tried again: lost, starved, or a failed endpoint")
    slot_restarts = _counter("reward_slot_restarts", "Sandboxes started anew after a loss")
    denials = _counter("reward_denials", "Processes that a layer of the jail stopped", "layer")
    checker_failures = _counter(
        "reward_checker_failures", "Checkers that failed on an output", "grader", "reason"
    )
    task_faults = _counter("reward_task_faults", "Answers ungraded: tests or grader are wrong")
    judged = _counter("reward_judged", "Answers for a judge: scored or why not", "judge", "outcome")
    helper_restarts = _counter("reward_helper_restarts", "Helper processes started anew")
    refusals = _counter("reward_refusals", "HTTP requests refused because the queue was full")
    queue = _gauge("reward_queue", "Pieces of work waiting for a core")
    queued_cpu = _gauge("reward_queued_cpu_seconds", "Estimated CPU-seconds waiting for a core")
    queue_age = _gauge("reward_queue_age_seconds", "How long the oldest has been waiting")
    tier = _gauge("reward_tier", "1 for the tier that the sandbox was shown to have", "tier")
    grading = _seconds("reward_grading_seconds", "Job to score, waiting included", "language")
    loop_lag = _seconds("reward_loop_lag_seconds", "How late the event loop comes to its work")


class WorkspaceMetrics:
    """Declared by the workspaces of the reward service."""

    open = _gauge("workspaces_open", "Workspaces that are open")
    opens = _counter("workspace_opens", "Workspaces asked for", "outcome")
    calls = _counter("workspace_calls", "Calls of workspaces that ended", "kind", "status")
    ends = _counter("workspace_ends", "Workspaces that ended", "reason")
    proxied = _counter(
        "workspace_proxied", "Connections of workspaces through their proxy", "outcome"
    )
    proxied_bytes = _counter("workspace_proxied_bytes", "Bytes that workspaces moved, both ways")
    snapshots = _gauge("workspace_snapshot_bytes", "Memory that snapshots take")
    open_seconds = _seconds("workspace_open_seconds", "From the request to the open workspace")
    grades = _counter("workspace_grades", "Workspaces graded", "verdict")
    forwards = _counter("workspace_forwards", "Requests for another replica's", "result")


class RunMetrics:
    """Declared by the orchestrator."""

    groups = _counter("run_groups", "Sample groups closed", "run", "status")
    groups_reopened = _counter("run_groups_reopened", "Trained, then rolled back", "run")
    tokens = _counter("run_tokens", "Response tokens that arrived, evaluations included", "run")
    reward = _gauge("run_reward", "Mean reward of the last batch", "run")
    named_reward = _gauge("run_named_reward", "The same of each named reward", "run", "name")
    heldout = _gauge("run_heldout_pass_rate", "pass@1 on held-out tasks", "run", "set")
    evaluation_failures = _counter("run_evaluation_failures", "Evaluations lost", "run", "reason")
    step = _gauge("run_step", "Train steps done", "run")
    staleness = _gauge("run_staleness_max", "Largest staleness in the last batch", "run")
    staleness_bound = _gauge("run_staleness_bound", "Largest staleness that is allowed", "run")
    disk_free = _gauge("run_disk_free_bytes", "Free bytes where the run directory is", "run")
    observer_failures = _counter("run_observer_failures", "Events not taken in", "run", "observer")
    in_flight = _gauge("run_groups_in_flight", "Groups open or being trained; 0 after it", "run")
    paused = _gauge("run_paused", "1 while the run is paused, else 0", "run")
    wanted_replicas = _gauge(
        "run_replicas_wanted", "Rollout replicas that there is work for", "run"
    )
    disk_full = _gauge(
        "run_disk_full", "1 while the run waits because its disk is full, else 0", "run"
    )
    dropped = _counter(
        "run_records_dropped", "Lines not written: disk, bound", "run", "file", "cause"
    )
    window = _gauge("run_admission_window", "Groups that may be open, if adaptive", "run")
    ledger_imbalance = _gauge("run_ledger_imbalance", "Admitted minus accounted; must be 0", "run")
    rollout_failures = _counter("run_rollout_failures", "Failed attempts", "run", "reason")
    episodes = _counter("run_episodes", "Episodes: played, or why they failed", "run", "outcome")
    refills = _counter("run_refills", "Groups of equal rewards: replaced or kept", "run", "outcome")
    idle = _counter("run_idle_seconds", "Seconds that a side waited", "run", "side", "cause")
    length_bias = _gauge("run_length_bias", "Mean length trained over sampled, less 1", "run")
    masked_tokens = _counter("run_masked_tokens", "Trained without gradient: too old", "run")
    interruptions = _counter("run_interruptions", "Rollouts stopped at a batch's end", "run")
    interruptions_missed = _counter(
        "run_interruptions_missed", "Sessions that went on instead, with older weights", "run"
    )
    ungraded = _counter(
        "run_ungraded", "Trajectories left out: grading itself failed", "run", "reason"
    )
    tracker_losses = _counter(
        "run_tracker_losses", "Figures that did not reach a tracker", "run", "tracker", "reason"
    )
    recoveries = _counter("run_recoveries", "Times the trainer was brought back", "run")
    ended = _counter("run_ended", "Runs that ended: finished, stopped, failed", "run", "state")
    end_failures = _counter("run_end_failures", "Last steps of a run that failed", "run", "part")
    phase = _seconds("run_phase_seconds", "Wall time of a phase of a train step", "run", "phase")


class TrainerMetrics:
    """Declared by the trainer."""

    steps = _counter("trainer_steps", "Train steps done", "run")
    tokens = _counter("trainer_tokens", "Response tokens trained on", "run")
    restarts = _counter("trainer_restarts", "Times lost ranks were replaced")
    checkpoints = _counter(
        "trainer_checkpoints", "Checkpoints: written, failed, refused when loaded", "run", "result"
    )
    skipped_updates = _counter("trainer_skipped_updates", "Updates that were not finite", "run")
    mismatch = _gauge("trainer_mismatch_max", "Largest same-version logprob difference", "run")
    grad_norm = _gauge("trainer_grad_norm", "Global gradient norm", "run")
    diagnostic = _gauge("trainer_diagnostic", "See docs/diagnostics.md", "run", "name")
    phase = _seconds("trainer_phase_seconds", "Wall time by phase", "run", "phase")
    quiet = _gauge("trainer_quiet_seconds", "Longest that a rank at work shows no progress")
    turn_wait = _seconds("trainer_turn_wait_seconds", "Until ranks had the devices they share")
    turn = _seconds("trainer_turn_seconds", "Turn on shared devices, from the loan to its end")
    parked = _gauge("trainer_parked_bytes", "State of all ranks that waits off their devices")


class RolloutMetrics:
    """Declared by the rollout server; vLLM's own metrics appear beside it as `ray_vllm_*`."""

    version = _gauge("rollout_version", "Policy version served", "replica")
    start_up = _gauge("rollout_start_seconds", "Time of a start-up phase", "replica", "phase")
    orders = _counter("rollout_orders", "Bus orders carried out", "replica", "order", "result")
