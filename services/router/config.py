"""The router's configuration: every deadline, bound and threshold it has."""

import ipaddress
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from services.access.config import AccessConfig
from services.observability.tracing import TracingConfig
from services.protocol.strict import StrictModel


class ListenConfig(StrictModel):
    """The router's own address. Other applications of Serve are reached through it, too.

    Attributes:
        host: IP address to listen on; any but a loopback address needs API keys, or
            `access.allow_unauthenticated`.
        port: 0 for any free one.
        max_connections: open connections of clients; more are sent away with status 503.
        ssl_certfile: certificate chain in PEM, on every node that runs a router; clients then
            use https.
        ssl_keyfile: its private key in PEM, if that is in a file of its own.
        drain_s: how long a router that stops waits for its open answers. Serve ends it after the
            deployment's `graceful_shutdown_timeout_s`: after 60 s unless the file says another.
    """

    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    max_connections: int = Field(default=8192, ge=1)
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    drain_s: float = Field(default=7200.0, ge=0)

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
        return ipaddress.ip_address(self.host).is_loopback

    @field_validator("host")
    @classmethod
    def _an_address(cls, host: str) -> str:
        ipaddress.ip_address(host)
        return host

    @model_validator(mode="after")
    def _key_with_certificate(self) -> Self:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile needs ssl_certfile beside it")
        return self


class BackendConfig(StrictModel):
    """An OpenAI-compatible server outside the cluster, as a replica without a journal.

    Attributes:
        url: what comes before `/v1/chat/completions` at that server.
        model: the model that it serves; requests that name it go there, and no others.
        api_key_env: environment variable of the router with the key that the server wants.
        max_model_len: shown in the list of models, if it is known.
    """

    url: str = Field(pattern=r"^https?://[^/?#]+(/[^?#]*[^/?#])?$")
    model: str = Field(min_length=1)
    api_key_env: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)

    @field_validator("url")
    @classmethod
    def _without_version(cls, url: str) -> str:
        if url.endswith("/v1"):
            raise ValueError("leave out the /v1 at the end: the router adds it")
        return url


class RouterConfig(StrictModel):
    """Settings of the router; all durations in seconds.

    Attributes:
        access: who may use it.
        backends: servers outside the cluster, each for one model that no replica of the
            cluster serves; several for one model share its requests.
        connect_s: to open a connection to a replica, including the wait for a free one.
        silence_s: connections to a replica break when its host has acknowledged no packet for so
            long. While a replica only stands still, its host acknowledges packets; a host that is
            cut off does not, and otherwise only the weight bus would report it.
        derender_s: for one derender call.
        first_token_s: from sending a request to a replica until its first chunk. Generous,
            because a replica queues requests and stands still while it commits weights.
        between_tokens_s: between two chunks of one answer.
        whole_answer_s: for an answer that only the replica itself can give, in one piece, so
            that nothing is heard of it in between.
        lease_wait_s: how long a request waits for a replica with a lease.
        interrupted_wait_s: how long an interrupted answer waits for the version that it is to
            go on with: longer than a train step and its weight update take.
        client_read_s: how long a client may take to send its request's body.
        client_write_s: how long a client may take to accept one piece of its answer.
        max_retries: how often one choice of an answer may be continued elsewhere in a row,
            without a new token in between.
        retry_pause_s: pause before the replica that just failed is tried again because no
            other one is leased; doubles with every retry.
        watch_wait_s: longest long poll for the member table; a quarter of the lease is
            used when that is shorter.
        spill_threshold: a session leaves its home replica when the home has more sequences above
            the least loaded replica than this number, and than `spill_ratio` allows.
        spill_ratio: the same bound as a multiple of the least loaded replica's sequences.
        group_slack: requests that begin alike share a replica while it has no more sequences above
            the least loaded replica than this number, or than `group_ratio` allows.
        group_ratio: the same bound as a multiple of the least loaded replica's sequences.
        max_sessions: sessions remembered; the least recently used is forgotten first.
        session_idle_s: a session not used for so long is forgotten, and so is its record.
        record_sessions: also record sessions that a client only names in its calls; those
            made with POST /v1/sessions always are.
        session_prompts: what the prompt of a call is made of that continues a conversation of its
            recorded session. `template`: the chat template renders all messages, as for every
            other call; many templates leave earlier thoughts out. `recorded`: it begins with the
            tokens of the conversation so far, thoughts included, and the template renders only
            the messages after them (docs/sessions.md).
        max_recorded_sessions: records kept; the least recently used is dropped first.
        max_open_calls: calls of one recorded session that may be open at once; more are refused
            with status 429.
        max_session_tokens: token ids kept of one recorded session from which on it takes no more
            calls; they are refused with status 429.
        max_recorded_tokens: token ids kept in all records together, about 12 bytes each.
        max_returned_tokens: tokens of trajectories in one answer, about 35 bytes each. A request
            for more gets status 413; clients then ask for some trajectories at a time.
        sessions_dir: folder where sessions that agents outside play are kept as well, so that they
            outlive a restart of the process that has them. Even one router then has that process
            beside it. null: in memory alone.
        session_poll_max_s: longest wait of a list request for a session to finish.
        max_stored_responses: answers of the Responses API that later requests may go on from;
            the least recently used is dropped first, within a conversation the newest. They are
            kept for `session_idle_s`.
        max_stored_response_mb: MiB of JSON of all of them together.
        eject_after: consecutive failures after which a replica gets no more work.
        eject_s: how long the first time; doubles with every further failure of a probe or of a
            request that tries the replica out.
        eject_max_s: longest such pause.
        slow_start_s: how long after an ejection a replica's share grows back to normal.
        probe_s: pause between two looks at each replica: whether an idle or ejected one
            still answers, and how full the engine of a busy one is.
        probe_timeout_s: deadline of such a look; an idle replica that misses it, or cannot
            be reached, counts one failure.
        max_sequences: sequences in flight on one replica before others wait, at most; the
            cap falls when the engine's queue or KV cache is too full, and rises again.
        min_sequences: where it stops falling.
        cap_step: sequences by which it rises at a time.
        kv_high: share of the KV cache in use above which it falls.
        kv_low: share below which it may rise.
        max_queued_requests: requests that may wait because every replica is full; more are
            refused with status 429. As many again may wait for a lease or a version, and
            answers that go on after a loss besides them.
        queue_wait_s: how long one may wait so.
        max_open_requests: more are refused with status 429.
        max_choices: a request for more answers at once (`n`, times the number of prompts, or the
            conversations of a batch) is refused with status 400; it bounds what one open request
            costs.
        max_connections: open connections to all replicas together.
        max_body_bytes: largest request body.
        journal_tokens: how many tokens a replica sends at once of an answer that its client gets
            in one piece. So many at most are made again when the replica is lost.
        listen: the address that clients use. Without it they come through Serve's proxy, at
            `http_options`, at more than twice the CPU a chat.
        tracing: a collector for spans, None for none (docs/tracing.md).
        begin_traces: begin a W3C trace for requests that bring none; those that bring one always
            have it handed on to the replica. With `tracing` every request has one.
        access_log: share of the successful requests that are logged, a line each. Above 0 every
            request that fails is logged as well; 0 logs nothing.
        replicas: routers that share the work. What they must agree on they tell each other
            through a table outside the path of requests.
        share_s: pause between two exchanges with that table.
        share_expire_s: a router that was not heard of for so long is not counted; one that
            cannot reach the table for so long decides alone.
        node_resource: custom Ray resource that a node must have for routers to be put there.
        num_cpus: what Ray reserves for each router.
    """

    access: AccessConfig = AccessConfig()
    backends: tuple[BackendConfig, ...] = ()
    connect_s: float = Field(default=5.0, gt=0)
    silence_s: float = Field(default=20.0, ge=1, le=3600)
    derender_s: float = Field(default=30.0, gt=0)
    first_token_s: float = Field(default=600.0, gt=0)
    between_tokens_s: float = Field(default=120.0, gt=0)
    whole_answer_s: float = Field(default=7200.0, gt=0)
    lease_wait_s: float = Field(default=60.0, ge=0)
    interrupted_wait_s: float = Field(default=7200.0, gt=0)
    client_read_s: float = Field(default=120.0, gt=0)
    client_write_s: float = Field(default=600.0, gt=0)
    max_retries: int = Field(default=5, ge=0)
    retry_pause_s: float = Field(default=0.2, ge=0)
    watch_wait_s: float = Field(default=2.0, gt=0)
    spill_threshold: int = Field(default=32, ge=0)
    spill_ratio: float = Field(default=0.5, ge=0)
    group_slack: int = Field(default=8, ge=0)
    group_ratio: float = Field(default=0.1, ge=0)
    max_sessions: int = Field(default=100_000, ge=1)
    session_idle_s: float = Field(default=3600.0, gt=0)
    record_sessions: bool = False
    session_prompts: Literal["template", "recorded"] = "template"
    max_recorded_sessions: int = Field(default=10_000, ge=1)
    max_open_calls: int = Field(default=256, ge=1)
    max_session_tokens: int = Field(default=5_000_000, ge=1)
    max_recorded_tokens: int = Field(default=20_000_000, ge=1)
    max_returned_tokens: int = Field(default=1_000_000, ge=1)
    sessions_dir: str | None = None
    session_poll_max_s: float = Field(default=60.0, ge=0)
    max_stored_responses: int = Field(default=10_000, ge=1)
    max_stored_response_mb: int = Field(default=256, ge=1)
    eject_after: int = Field(default=3, ge=1)
    eject_s: float = Field(default=1.0, gt=0)
    eject_max_s: float = Field(default=30.0, gt=0)
    slow_start_s: float = Field(default=10.0, gt=0)
    probe_s: float = Field(default=2.0, gt=0)
    probe_timeout_s: float = Field(default=10.0, gt=0)
    max_sequences: int = Field(default=1024, ge=1)
    min_sequences: int = Field(default=8, ge=1)
    cap_step: int = Field(default=8, ge=1)
    kv_high: float = Field(default=0.95, gt=0, le=1)
    kv_low: float = Field(default=0.85, gt=0, le=1)
    max_queued_requests: int = Field(default=2048, ge=0)
    queue_wait_s: float = Field(default=3600.0, gt=0)
    max_open_requests: int = Field(default=4096, ge=1)
    max_choices: int = Field(default=256, ge=1)
    max_connections: int = Field(default=8192, ge=1)
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    replicas: int = Field(default=1, ge=1)
    share_s: float = Field(default=0.1, gt=0)
    share_expire_s: float = Field(default=3.0, gt=0)
    journal_tokens: int = Field(default=16, ge=1)
    listen: ListenConfig | None = None
    tracing: TracingConfig | None = None
    begin_traces: bool = False
    access_log: float = Field(default=0.0, ge=0, le=1)
    node_resource: str | None = Field(default=None, min_length=1)
    num_cpus: float = Field(default=0.1, ge=0)

    @model_validator(mode="after")
    def _own_port_asks_for_keys(self) -> Self:
        guarded = self.access.has_keys or self.access.allow_unauthenticated
        if self.listen is None or guarded or self.listen.is_loopback:
            return self
        raise ValueError(
            f"listen.host is {self.listen.host}, so others reach the router: set "
            "access.api_keys_file, or listen on 127.0.0.1, or, where something in front "
            "authenticates, access.allow_unauthenticated: true"
        )
