"""What holds of the choice whatever happens: Hypothesis looks for what would break it."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.router.config import RouterConfig
from services.router.placement.choice import ReplicaChooser
from services.router.request.needs import PromptPrefix

REPLICAS = ("a", "b", "c", "d")
CONFIG = RouterConfig(max_sessions=5, session_idle_s=50, eject_after=2, eject_s=1.0)
sessions = st.none() | st.sampled_from([f"s{number}" for number in range(8)])
groups = st.none() | st.sampled_from(["g", "h"])
usable = st.sets(st.sampled_from(REPLICAS), min_size=1).map(sorted)


class Choosing(RuleBasedStateMachine):
    """Requests come and go, replicas fail and recover, time passes."""

    def __init__(self):
        super().__init__()
        self.chooser, self.now = ReplicaChooser(CONFIG), 0.0
        self.open: list[tuple[str, int, object]] = []

    @rule(
        candidates=usable,
        full=st.sets(st.sampled_from(REPLICAS)),
        session=sessions,
        group=groups,
        weight=st.integers(1, 20),
    )
    def choose(self, candidates, full, session, group, weight):
        could = [
            name
            for name in candidates
            if name not in full and self.chooser.health(name).admits(self.now)
        ]
        choice = self.chooser.choose(
            candidates,
            session=session,
            weight=weight,
            now=self.now,
            prefix=PromptPrefix(group=group),
            full=full,
        )
        assert (choice is None) == (not could), "work waits exactly when nobody may be given it"
        if choice is not None:
            assert choice.replica_id in could
            self.open.append((choice.replica_id, weight, choice.trial))
            if session is not None:
                assert self.chooser.homes.get(session, self.now) == choice.replica_id

    @precondition(lambda self: self.open)
    @rule(which=st.randoms(use_true_random=False), fails=st.booleans())
    def end(self, which, fails):
        replica, weight, trial = self.open.pop(which.randrange(len(self.open)))
        self.chooser.release(replica, weight)
        health = self.chooser.health(replica)
        health.over(trial)
        health.failed(self.now) if fails else health.completed(self.now)

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds):
        self.now += seconds

    @rule(session=st.sampled_from(["s0", "s1"]))
    def finish(self, session):
        self.chooser.homes.forget(session)
        assert self.chooser.homes.get(session, self.now) is None

    @invariant()
    def counts_are_conserved(self):
        counted = Counter()
        for replica, weight, _ in self.open:
            counted[replica] += weight
        assert self.chooser.counts == dict(counted)

    @invariant()
    def the_session_table_is_bounded(self):
        assert len(self.chooser.homes) <= CONFIG.max_sessions


TestChoosing = Choosing.TestCase
TestChoosing.settings = settings(max_examples=40, stateful_step_count=40)


@given(burst=st.lists(st.tuples(sessions, groups), max_size=120))
@settings(max_examples=60)
def test_new_requests_never_unbalance_by_more_than_the_slack(burst):
    """Whatever begins alike: nobody waits on a loaded replica while another is idle."""
    config = RouterConfig(spill_threshold=6, spill_ratio=0.25)
    chooser = ReplicaChooser(config)
    for session, group in burst:
        prefix = PromptPrefix(group=group)
        chooser.choose(REPLICAS, session=session, weight=1, now=0.0, prefix=prefix)
        loads = [chooser.load(name) for name in REPLICAS]
        allowed = max(
            config.spill_threshold,
            config.group_slack,
            max(config.spill_ratio, config.group_ratio) * min(loads),
        )
        assert max(loads) - min(loads) <= allowed + 1


@given(order=st.permutations(range(12)), calls=st.integers(2, 5))
@settings(max_examples=30)
def test_sessions_stay_home_while_nothing_is_wrong(order, calls):
    chooser, homes = ReplicaChooser(RouterConfig()), {}
    for turn in range(calls):
        for number in order:
            choice = chooser.choose(REPLICAS, session=f"{number}", weight=1, now=float(turn))
            assert homes.setdefault(number, choice.replica_id) == choice.replica_id
            assert choice.kind == ("hit" if turn else "new")
            chooser.release(choice.replica_id, 1)


@given(failing=st.sampled_from(REPLICAS), rounds=st.integers(20, 60))
@settings(max_examples=20)
def test_a_replica_that_fails_fast_attracts_nothing_and_starves_nobody(failing, rounds):
    """It always looks idle; all the same the others get nearly every request."""
    chooser, failures, now = ReplicaChooser(RouterConfig(eject_after=3)), 0, 0.0
    held: list[str] = []
    for _ in range(rounds):
        now += 0.05
        choice = chooser.choose(REPLICAS, session=None, weight=1, now=now)
        if choice.replica_id == failing:
            failures += 1
            chooser.release(failing, 1)
            chooser.health(failing).over(choice.trial)
            chooser.health(failing).failed(now)
        else:
            held.append(choice.replica_id)
    assert failures <= 3 + 2  # then one probe a second at most, half as often each time
    assert set(held) == set(REPLICAS) - {failing}
