"""What the report of a campaign says was lost, and how fast each fault was over."""

from millrace_tools.chaos.observation import (
    Audit,
    Call,
    InjectedFault,
    Leases,
    Observation,
    Progress,
)
from millrace_tools.chaos.random_faults import CANDIDATES, RandomFaults
from millrace_tools.chaos.report import make_report
from millrace_tools.chaos.script import Fault, FaultSpec, Target
from services.protocol.run.orchestrator import LedgerCounts, RunState

KILL = FaultSpec(at=10.0, fault=Fault.KILL, target=Target.REPLICA)


def leases(at_s: float, count: int, version: int = 1, bus: str = "a") -> Leases:
    leased = frozenset(f"r{index}" for index in range(count))
    return Leases(at_s=at_s, leased=leased, newest_version=version, bus_id=bus)


def progress(at_s: float, step: int, **more: object) -> Progress:
    given: dict = {"state": RunState.TRAINING, "ledger": LedgerCounts(admitted=1, in_flight=1)}
    return Progress(at_s=at_s, step=step, **(given | more))


def seen(**changes: object) -> Observation:
    """Two replicas, one of which is killed at 10 s and is back at 17 s."""
    whole: dict = {
        "expected": 2,
        "leases": [leases(0, 2), leases(12, 1), leases(17, 2), leases(20, 2)],
        "progress": [progress(5, 3), progress(11, 3), progress(14, 4), progress(29, 6)],
        "audits": [Audit(at_s=15, off=0, skipped=0)],
        "calls": [
            Call(sent_s=9, ended_s=11, kind="whole"),
            Call(sent_s=11, ended_s=13, kind="stream"),
        ],
        "faults": [InjectedFault(at_s=10, spec=KILL, victim="7 on x")],
        "ended_s": 30.0,
    }
    return Observation(**(whole | changes))


def test_recovery_is_timed_from_the_fault_to_lease_step_and_answer() -> None:
    drawn = make_report(seen())
    (one,) = drawn.recoveries
    assert (one.leased_s, one.stepped_s, one.answered_s) == (7.0, 4.0, 3.0)
    assert drawn.lost == ()


def test_a_lease_that_nobody_lost_took_no_time_and_one_that_stays_away_is_a_loss() -> None:
    calm = make_report(seen(leases=[leases(0, 2), leases(20, 2)]))
    assert calm.recoveries[0].leased_s == 0.0
    short = make_report(seen(leases=[leases(0, 2), leases(12, 1)]))
    assert short.recoveries[0].leased_s is None
    (lost,) = short.lost
    assert lost.startswith("1 of 2 replicas have a lease at the end")
    assert "--settle" in lost


def test_a_lease_that_an_earlier_fault_took_is_not_the_later_ones_doing() -> None:
    later = InjectedFault(at_s=13, spec=KILL, victim="8 on x")
    first, second = make_report(seen(faults=[*seen().faults, later])).recoveries
    assert (first.leased_s, second.leased_s) == (7.0, 0.0)


def test_a_lease_that_a_later_fault_took_is_not_the_earlier_ones_doing() -> None:
    push = FaultSpec(at=1.0, fault=Fault.CORRUPT, target=Target.PUSH)
    earlier = InjectedFault(at_s=1, spec=push, victim="rank 0")
    first, second = make_report(seen(faults=[earlier, *seen().faults])).recoveries
    assert (first.leased_s, second.leased_s) == (0.0, 7.0)


def test_every_kind_of_loss_is_told() -> None:
    failed = LedgerCounts(admitted=3, failed=2, in_flight=1)
    over = {"state": RunState.FAILED, "detail": "why", "ledger": failed}
    drawn = make_report(
        seen(
            calls=[Call(sent_s=11, ended_s=12, kind="whole", problem="500")],
            audits=[Audit(at_s=1, off=3, skipped=0), Audit(at_s=2, off=0, skipped=1)],
            progress=[progress(1, 1), progress(29, 2, **over)],
            leases=[leases(0, 2, version=5), leases(20, 2, version=4)],
            lasting=1,
        )
    )
    told = "\n".join(drawn.lost)
    for part in (
        "500",
        "off by 3",
        "1 prompts",
        "2 sample groups",
        "why",
        "from 5 to 4",
        "5 to 4",
        "undone",
    ):
        assert part in told, part
    assert len(drawn.lost) == 8


def test_a_ledger_that_nobody_could_read_is_not_said_to_balance() -> None:
    assert make_report(seen(audits=[])).lost == ("the ledger could not be read in the last 30 s",)
    stale = make_report(seen(ended_s=90.0, progress=[progress(5, 3), progress(89, 6)])).lost
    assert stale == ("the ledger could not be read in the last 75 s",)


def test_a_new_bus_that_learns_its_versions_again_has_lost_none() -> None:
    again = [leases(0, 2, version=5), leases(12, 0, -1, "b"), leases(20, 2, 5, "b")]
    assert make_report(seen(leases=again)).lost == ()


def test_a_seed_draws_the_same_faults_each_once_before_any_comes_again() -> None:
    def drawn(seed: int) -> list[tuple[Fault, Target]]:
        draw = RandomFaults(seed)
        specs = [draw.next(0.0, lambda *_: True) for _ in range(2 * len(CANDIDATES))]
        return [(spec.fault, spec.target) for spec in specs if spec is not None]

    assert drawn(3) == drawn(3) != drawn(4)
    assert set(drawn(3)[: len(CANDIDATES)]) == set(CANDIDATES) == set(drawn(3)[len(CANDIDATES) :])


def test_what_may_not_be_hit_now_is_drawn_later() -> None:
    draw = RandomFaults(0)
    spared = [draw.next(0.0, lambda _, target: target is not Target.RANK) for _ in range(4)]
    assert all(spec is not None and spec.target is not Target.RANK for spec in spared)
    assert RandomFaults(0).next(0.0, lambda *_: False) is None
