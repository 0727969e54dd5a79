"""Draws docs/diagrams/schedules.svg: when each schedule samples, trains and pushes.

    python -m benchmarks.schedules.picture

The orchestrator is the real one, on the simulated cluster of `speed.py`: eight replicas that
sample one answer at a time, batches of four sample groups of two answers, middling tails.
"""

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.schedules.bus import Bus
from benchmarks.schedules.cluster import Cluster
from benchmarks.schedules.hardware import MEAN_TOKENS, Trace
from benchmarks.schedules.rollouts import Answer, Rollouts
from benchmarks.schedules.speed import TAILS
from benchmarks.schedules.virtual_run import live, run_file, without_output
from docs.diagrams.draw import HERE, STYLE, digest
from millrace_tools.simulation.hardware import Groups, Hardware

PRESETS = ("sync", "one_step_off", "stream", "partial", "async")
STEPS, REPLICAS, GROUP_SIZE = 16, 8, 2
SHOWN_S = 8 * MEAN_TOKENS
HARDWARE = Hardware(
    replicas=REPLICAS,
    slots=1,
    sandboxes=8,
    train_s=MEAN_TOKENS / 2,
    push_s=MEAN_TOKENS / 12,
)
STEP_COLOURS = ("#000001", "#000002", "#000003")
"""Of the answers of each train step in turn."""
PUSH, EDGE = "#000005", "#000006"
VARIABLES = dict(
    zip((*STEP_COLOURS, PUSH, EDGE), ("one", "two", "three", "bytes", "edge"), strict=True)
)
"""The variable of the style by which each colour is replaced."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch in which an answer of a group was sampled, in virtual seconds."""

    group: int
    began: float
    ended: float


class WatchedRollouts(Rollouts):
    """Rollouts that remember when each answer was sampled."""

    def __init__(self, hardware: Hardware, trace: Groups, bus: Bus) -> None:
        super().__init__(hardware, trace, bus)
        self.pieces: list[Piece] = []

    def put_down(self, answer: Answer, seconds: float) -> None:
        """See `Rollouts`."""
        super().put_down(answer, seconds)
        group = answer.session.split("-")[-2]
        if self.began is not None and seconds > 0:  # before that an evaluation is sampled
            began = answer.began - self.began
            self.pieces.append(Piece(group=int(group), began=began, ended=began + seconds))


def main() -> None:
    """Play each preset and draw them below each other."""
    without_output()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "schedules", "font.size": 9}):
        figure = Figure(figsize=(9.4, 9.0))
        for axes, preset in zip(figure.subplots(len(PRESETS), sharex=True), PRESETS, strict=True):
            with tempfile.TemporaryDirectory() as folder:
                _draw(axes, preset, _played(preset, Path(folder) / "run"))
        axes.set_xlabel("virtual seconds")
        figure.tight_layout(h_pad=0.4)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    (HERE / "schedules.svg").write_text(_themed(text.getvalue()), encoding="utf-8")


def _played(preset: str, folder: Path) -> Cluster:
    trace = Trace(sigma=TAILS["middling"], score_s=2.0, group_size=GROUP_SIZE, seed=1)
    cluster = Cluster(HARDWARE, trace, WatchedRollouts)
    shape = {"steps": STEPS, "batch_groups": REPLICAS // GROUP_SIZE, "group_size": GROUP_SIZE}
    live(run_file(folder, schedule={"preset": preset}, **shape), cluster)
    return cluster


def _draw(axes: Axes, preset: str, cluster: Cluster) -> None:
    rollouts, steps = cluster.rollouts, cluster.trainer.steps
    assert isinstance(rollouts, WatchedRollouts)
    assert rollouts.began is not None
    colours = [STEP_COLOURS[number % len(STEP_COLOURS)] for number in range(len(steps))]
    trained_in = {g: i for i, step in enumerate(steps) for g in step.groups}
    free_at = [0.0] * REPLICAS
    for piece in sorted(rollouts.pieces, key=lambda piece: (piece.began, piece.group)):
        lane = min(range(REPLICAS), key=lambda lane: (free_at[lane] > piece.began + 1e-6, lane))
        free_at[lane] = piece.ended
        number = trained_in.get(piece.group)
        colour = EDGE if number is None else colours[number]
        _bar(axes, REPLICAS - lane, piece.began, piece.ended, 0.8, colour)
    for step, colour in zip(steps, colours, strict=True):
        ended = step.ended - rollouts.began
        _bar(axes, -0.4, ended - HARDWARE.train_s, ended, 1.6, colour)
        _bar(axes, -0.4, ended, ended + HARDWARE.push_s, 1.6, PUSH)
    axes.set(xlim=(0, SHOWN_S), ylim=(-1.6, REPLICAS + 1.2), ylabel=preset)
    axes.set_yticks([-0.4, REPLICAS / 2 + 0.5], ["trainer", "replicas"])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _bar(axes: Axes, y: float, began: float, ended: float, height: float, colour: str) -> None:
    if began < SHOWN_S:
        axes.barh(
            y,
            min(ended, SHOWN_S) - began,
            left=began,
            height=height,
            facecolor=colour,
            edgecolor=EDGE,
            linewidth=0.5,
            clip_on=False,
        )


def _themed(svg: str) -> str:
    """With colours of the style instead of those that stand for them, and a panel behind."""
    svg = svg[svg.index("<svg") :]
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    head, body = svg.split(">", 1)
    origin = f"<!-- drawn from {digest(Path(__file__).read_text(encoding='utf-8'))} -->"
    panel = '<rect width="100%" height="100%" rx="6" style="fill: var(--panel)"/>'
    return f"{head}>\n{origin}\n<style>{STYLE}</style>\n{panel}{body}"


if __name__ == "__main__":
    main()
