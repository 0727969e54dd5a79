"""The table and the figure that docs have from the results of `benchmarks.one_process`."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks.learning.figures import IMAGES, two_curves
from benchmarks.learning.matrix import ALGORITHM_BOUNDS
from benchmarks.learning.page import Rows, bounds_table, steps_to
from benchmarks.learning.results import Outcome, Results
from benchmarks.one_process.matrix import DISTILLATION, STUDENT, TEACHER, stale_name
from benchmarks.report import BASELINES, ROOT, markdown, with_table

RESULTS = BASELINES / "one_process.json"
PAGE = ROOT / "docs" / "teachers.md"
SHARES = (0.5, 0.8, 0.95)
_LABELS = {
    "reward": "the demo's model, from rewards",
    "teacher": "the demo's model, from a teacher",
    "early_reward": "an earlier one, from rewards",
    "early_teacher": "an earlier one, from a teacher",
}


def filled(page: str, results: Results) -> str:
    """The page with the tables of these results between its marks."""
    page = with_table(page, "distillation", markdown(_students(results)))
    stale = bounds_table(results, "preset", [STUDENT], stale_name, ALGORITHM_BOUNDS)
    return with_table(page, "stale distillation", markdown(stale))


def draw(results: Results) -> Path:
    """Draw the students' curves; returns the file."""
    curves = {_LABELS[name]: _student(results, name) for name in DISTILLATION}
    path = IMAGES / "learning_distillation.png"
    FigureCanvasAgg(two_curves(curves)).print_png(str(path))
    return path


def _student(results: Results, name: str) -> list[Outcome]:
    return results.of(f"distillation/{name}")


def _students(results: Results) -> Rows:
    """How soon each student is as good as the teacher of its seed turned out."""
    goals = {one.seed: one.after for one in results.of(TEACHER)}
    head = ["student", "held-out before, by seed", "after"]
    rows = [head + [f"steps to {share:.0%} of the teacher" for share in SHARES]]
    for name in DISTILLATION:
        if not (outcomes := _student(results, name)):
            continue
        row = [_LABELS[name]]
        row.append(", ".join(f"{one.before:.2f}" for one in outcomes))
        row.append(", ".join(f"{one.after:.2f}" for one in outcomes))
        for share in SHARES:
            reached = [steps_to(one, share * goals[one.seed]) for one in outcomes]
            row.append(", ".join(str(step or "never") for step in reached))
        rows.append(row)
    return rows
