"""The rule by which a hang is told from slow work, in virtual time."""

from services.protocol.trainer import RankProgress
from services.trainer.config import TrainerConfig
from services.trainer.lead.group_progress import GroupProgress

CONFIG = TrainerConfig(model="m", world_size=2, start_timeout_s=180, progress_timeout_s=45)


class Group:
    """Two ranks that report what a test says."""

    def __init__(self, phase: str = "train") -> None:
        self.now = 1000.0
        self.progress = GroupProgress(CONFIG, clock=lambda: self.now)
        self.progress.begin((0, 1), phase)

    def pass_time(self, seconds: float, *said: tuple[int, str, int, bool]) -> str | None:
        """Each rank that is said to answers once a second: rank, phase, marks, whether alive."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for rank, phase, marks, alive in said:
                quiet = 0.0 if alive else self.quiet(rank)
                parts = (5, 10) if phase == "loading" else (0, 0)
                self.progress.report(
                    RankProgress(
                        phase=phase,
                        done=parts[0],
                        total=parts[1],
                        marks=marks,
                        quiet_s=quiet,
                        rank=rank,
                    )
                )
            if hung := self.progress.hung():
                return hung
        return None

    def quiet(self, rank: int) -> float:
        return self.progress._now(rank).quiet_s


def test_a_step_of_hours_goes_on_while_one_rank_works_and_the_other_waits_for_it() -> None:
    group = Group()
    assert group.pass_time(7200, (0, "micro-batch", 9, False), (1, "micro-batch", 8, True)) is None


def test_a_process_that_does_not_answer_is_named_though_the_other_works() -> None:
    group = Group()
    hung = group.pass_time(60, (0, "micro-batch", 9, True))
    assert hung == "rank 1 hangs in train: its process does not answer for 46 s"
    assert group.now == 1046


def test_ranks_that_all_wait_hang_and_the_one_that_is_behind_is_named() -> None:
    group = Group()
    group.pass_time(100, (0, "micro-batch", 5, True), (1, "micro-batch", 5, True))
    hung = group.pass_time(60, (0, "micro-batch", 9, False), (1, "micro-batch", 8, False))
    assert hung == "rank 1 hangs in micro-batch: it shows no progress for 46 s"
    assert group.now == 1146


def test_a_load_that_stands_still_is_found_though_other_ranks_load_on() -> None:
    group = Group("starting")
    hung = group.pass_time(60, (0, "loading", 9, True), (1, "loading", 3, False))
    assert hung is not None
    assert hung.startswith("rank 1 hangs in loading")


def test_a_load_of_hours_that_moves_goes_on() -> None:
    group = Group("starting")
    assert group.pass_time(7200, (0, "loading", 9, True), (1, "loading", 3, True)) is None


def test_a_rank_that_has_loaded_and_waits_for_one_that_loads_does_not_hang() -> None:
    group = Group("starting")
    assert group.pass_time(7200, (0, "optimizer", 9, False), (1, "loading", 3, True)) is None


def test_imports_have_the_deadline_of_starts() -> None:
    group = Group("starting")
    assert group.pass_time(180, (0, "starting", 1, False), (1, "starting", 1, False)) is None
    hung = group.pass_time(2, (0, "starting", 1, False), (1, "starting", 1, False))
    assert hung is not None


def test_a_rank_that_is_done_does_not_count_and_the_one_left_is_the_slowest() -> None:
    group = Group()
    group.pass_time(10, (0, "idle", 9, False), (1, "saving", 8, True))
    group.progress.at_work = [1]
    slowest = group.progress.slowest
    assert slowest is not None
    assert (slowest.rank, slowest.phase) == (1, "saving")
    assert group.pass_time(600, (1, "saving", 8, True)) is None
    assert (group.pass_time(60, (1, "saving", 8, False)) or "").startswith("rank 1 hangs in saving")


def test_progress_is_said_in_units_of_the_phase() -> None:
    gib = 1 << 30
    assert str(RankProgress(phase="loading", done=3 * gib, total=14 * gib)) == (
        "loading 3.0 of 14.0 GiB"
    )
    assert str(RankProgress(phase="micro-batch", done=3, total=8)) == "micro-batch 3 of 8"
    assert str(RankProgress(phase="optimizer")) == "optimizer"
