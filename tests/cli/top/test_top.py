"""`millrace top`."""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from millrace_tools.main import main
from millrace_tools.top.alarms import alarms
from millrace_tools.top.cluster_feed import ClusterFeed
from millrace_tools.top.metric_pages import Rates, by_label, series, total
from millrace_tools.top.observer import Observer, pushes, replicas
from millrace_tools.top.screen import RewardHistory, draw
from millrace_tools.top.snapshot import Push, Replica, Rewards, Snapshot
from services.protocol.run.orchestrator import LedgerCounts, RunState
from tests.cli.conftest import Orchestra

LOAD = {
    "replicas": 2,
    "full": 1,
    "in_flight": 37,
    "waiting": 4,
    "queued": 1.0,
    "kv_usage": 0.25,
    "max_choices": 64,
}
PAGE = """\
# HELP ray_millrace_reward_queue Pieces of work
# TYPE ray_millrace_reward_queue gauge
ray_millrace_reward_queue{Component="core_worker",WorkerId="a"} 3.0
ray_millrace_reward_queue{Component="core_worker",WorkerId="b"} 4.0
ray_millrace_reward_verdicts_total{verdict="accepted",language="python"} 10.0
ray_millrace_reward_verdicts_total{verdict="accepted",language="cpp17"} 5.0
ray_other{broken
"""


@pytest.fixture
def look(orchestra: Orchestra) -> Snapshot:
    """All is well."""
    idle = {"trainer": {"rollout": 0.25}, "rollout": {}}
    run = orchestra.status(run_id="tiny_code-20261121-114221-4336", seconds_left=754.0, idle=idle)
    name = "rollout_server#rollout_server#abcdefgh-0123456789"
    return Snapshot(
        at=1e9,
        url="http://127.0.0.1:8000",
        runs=[run, orchestra.finished()],
        newest_version=7,
        replicas=[
            Replica(
                replica_id=name,
                state="live",
                version=6,
                leased=True,
                in_flight=128,
                waiting=2,
                kv_usage=0.513,
            )
        ],
        pushes=[
            Push(version=7, train_step=6, age_s=4.0, took_s=0.61, commits=1, failures=0),
        ],
        rewards=Rewards(queue=5, queue_age_s=2.0, slots_busy=1.75, verdicts={"accepted": 12.5}),
    )


def drawn(look: Snapshot, *, columns: int = 80) -> str:
    console = Console(width=columns, color_system=None)
    history = RewardHistory()
    history.add(look.runs)
    with console.capture() as shown:
        console.print(draw(look, history), highlight=False)
    return shown.get()


def test_everything_is_shown_in_80_columns(look: Snapshot) -> None:
    shown = drawn(look)
    assert max(map(len, shown.splitlines())) <= 80
    for wanted in (
        "tiny_code-20261121-114221-4336",
        "0/2, 12 min 34 s left",
        "512/s",
        "25% rollout",
        "4 groups = 3 trained + 1 filtered",
        "6 (-1)",
        "128",
        "51%",
        "0.61 s",
        "accepted 12.5/s",
        "5 queued (oldest 2 s), 1.75 slots at work",
    ):
        assert wanted in shown, shown
    assert "!" not in shown
    assert "tiny-1  finished  2/2" in shown


def test_what_a_run_says_of_itself_is_no_markup(look: Snapshot, orchestra: Orchestra) -> None:
    said = "[/run/1] is not [dim]"
    assert said in drawn(replace(look, runs=[orchestra.status(detail=said)]))


def test_nothing_known_is_drawn_as_well() -> None:
    shown = drawn(Snapshot(at=0.0, url="u", absent={"weight bus": "nobody"}))
    assert "! weight bus: nobody" in shown
    assert "No runs yet." in shown


def run_with(orchestra: Orchestra, **changes: Any) -> dict[str, Any]:
    return {"runs": [orchestra.status(**changes)]}


def test_each_alarm_names_what_is_wrong(look: Snapshot, orchestra: Orchestra) -> None:
    suspect = replace(look.replicas[0], state="suspect", error="missed its beat")
    failed = replace(look.pushes[0], failures=2, error="r1: stage: digest")
    unbalanced = LedgerCounts(admitted=4, trained=3)
    for changes, wanted in (
        ({"absent": {"router": "away"}}, "router: away"),
        (run_with(orchestra, state=RunState.FAILED, detail="gone"), "tiny-1 is failed: gone"),
        (run_with(orchestra, state=RunState.DISK_FULL, detail="full"), "tiny-1 is disk_full: full"),
        (run_with(orchestra, ledger=unbalanced), "the sides differ by 1"),
        (run_with(orchestra, live_replicas=0), "tiny-1 has no replica with a lease"),
        (run_with(orchestra, heldout_problem="late"), "tiny-1: late"),
        ({"replicas": [suspect]}, "is suspect: missed its beat"),
        ({"pushes": [failed]}, "version 7 failed 2 times: r1: stage: digest"),
        (
            {"rewards": Rewards(queue=1, queue_age_s=99.0, slots_busy=None, verdicts={})},
            "waited 99 s",
        ),
        (
            {
                "rewards": Rewards(
                    queue=0, queue_age_s=0.0, slots_busy=0.0, verdicts={"infra_error": 0.5}
                )
            },
            "0.5 answers a second end in infra_error",
        ),
    ):
        (text,) = alarms(replace(look, **changes))
        assert wanted in text
    assert alarms(look) == []


def test_a_run_without_a_lease_in_the_trainers_turn_is_no_alarm(
    look: Snapshot, orchestra: Orchestra
) -> None:
    lent = replace(look.replicas[0], state="lent", leased=False)
    assert alarms(replace(look, replicas=[lent], **run_with(orchestra, live_replicas=0))) == []


def test_metrics_are_summed_over_processes_and_other_lines_are_not_read() -> None:
    page = series(PAGE, ("ray_millrace_reward_queue", "ray_millrace_reward_verdicts"))
    assert total([page], "ray_millrace_reward_queue") == 7
    verdicts = by_label([page, page], "ray_millrace_reward_verdicts_total", "verdict")
    assert verdicts == {"accepted": 30}
    assert total([page], "ray_millrace_none") is None


def test_a_rate_lasts_until_the_page_is_written_again_and_is_forgotten_then() -> None:
    rates = Rates()
    assert rates.of({"accepted": 10}, 0.0) == {}
    assert rates.of({"accepted": 30}, 10.0) == {"accepted": 2.0}
    assert rates.of({"accepted": 30}, 15.0) == {"accepted": 2.0}
    assert rates.of({"accepted": 30}, 40.0) == {}
    assert rates.of({"accepted": 5}, 41.0) == {}, "it was started again"
    assert rates.of({"accepted": 15}, 46.0) == {"accepted": 2.0}


def test_a_replica_that_nobody_could_ask_is_shown_without_figures() -> None:
    member = {
        "replica_id": "r1",
        "state": "live",
        "committed_version": 3,
        "leased": True,
        "last_error": "",
    }
    page = series("vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting 2\n", ("vllm:",))
    told, silent = replicas([member, member | {"replica_id": "r2"}], {"r1": 4.0}, [page, {}])
    assert (told.in_flight, told.waiting, told.kv_usage) == (4, 2, 0.5)
    assert (silent.in_flight, silent.waiting, silent.kv_usage) == (None, None, None)


def test_a_push_took_until_its_newest_commit() -> None:
    outcomes = [
        {"replica_id": "r1", "at": 101.0, "error": None},
        {"replica_id": "r2", "at": 102.5, "error": None},
        {"replica_id": "r3", "at": 103.0, "error": "stage: late"},
    ]
    record = {
        "version": 4,
        "train_step": 3,
        "published_at": 100.0,
        "commits": 2,
        "failures": 1,
        "outcomes": outcomes,
    }
    (push,) = pushes([record], 110.0)
    assert (push.age_s, push.took_s, push.error) == (10.0, 2.5, "r3: stage: late")


def test_piped_one_look_is_json_and_names_who_is_away(
    orchestra: Orchestra, closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/v1/load"] = (200, LOAD)
    address = closed_url.removeprefix("http://")
    assert main(["top", "--url", orchestra.url, "--address", address]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"][0]["run_id"] == "tiny-1"
    assert told["load"]["in_flight"] == 37
    assert "Nothing answers there" in told["absent"]["weight bus"]
    assert told["alarms"] == [f"weight bus: {told['absent']['weight bus']}"]


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ClusterFeed]]:
    """A feed whose process tells of one replica and dies."""
    table = {"newest_version": 1, "members": []}
    word = json.dumps({"table": table, "versions": [], "pages": []})
    monkeypatch.setattr("millrace_tools.top.cluster_feed._AGAIN_S", 0.01)
    torn = word[: len(word) // 2]
    script = f"import sys; print({torn!r}); print({word!r}, flush=True); sys.stdin.readline()"
    begin = ClusterFeed.__init__

    def scripted(self: ClusterFeed, address: str | None) -> None:
        begin(self, address)
        self._command = [sys.executable, "-I", "-S", "-c", script]

    monkeypatch.setattr(ClusterFeed, "__init__", scripted)
    return ClusterFeed


@pytest.mark.parametrize("late", [1, 2])
def test_one_look_raises_no_alarm_for_a_source_that_is_late(
    orchestra: Orchestra, feed: type[ClusterFeed], monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    monkeypatch.setattr("millrace_tools.top.observer._LOOK_S", 0.0)
    orchestra.replies["GET", "/v1/load"] = [(502, "late")] * late + [(200, LOAD)]
    with Observer(orchestra.url, None) as observer:
        observer.wait_for_cluster()
        assert alarms(observer.steady_look()) == []


def test_the_view_outlives_the_services_and_the_cluster(
    orchestra: Orchestra, feed: type[ClusterFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestra.replies["GET", "/v1/load"] = [(502, "gone"), (200, LOAD)]
    runs = [orchestra.status().model_dump(mode="json")]
    orchestra.replies["GET", "/v1/runs"] = [(502, "gone"), (200, runs)]
    with Observer(orchestra.url, None) as observer:
        observer.wait_for_cluster()
        away = observer.look()
        assert set(away.absent) == {"router", "orchestrator"}
        back = observer.look()
        assert not back.absent
        assert back.newest_version == 1
        lost = threading.Event()
        listen = observer._feed._listen

        def listen_again(lines: Any) -> None:
            lost.set()
            observer._feed.heard.clear()
            listen(lines)

        monkeypatch.setattr(observer._feed, "_listen", listen_again)
        assert observer._feed._process is not None
        observer._feed._process.kill()
        assert lost.wait(300), "another process joins"
        assert observer._feed.heard.wait(300)
        assert observer.look().newest_version == 1
