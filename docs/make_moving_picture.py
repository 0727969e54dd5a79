"""Draws docs/images/demo.svg: a run of the demo, its command and its page, as it went on.

    millrace demo                # three times: one view of the page shows several runs
    python docs/make_moving_picture.py runs/tiny_code-...

Every line, point and bar is from the files of that run, and what follows is its page as chromium
shows it. The picture is CSS in one file: browsers play it inside an `<img>`, and a reader who
wants no motion sees the end of the demo.
"""

import argparse
import base64
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from services.page.reading.run_folder import RunFolder

PICTURE = Path(__file__).parent / "images" / "demo.svg"
PLAY_S, HOLD_S, PAGE_S = 14.0, 4.0, 3.0
WIDTH, HEIGHT = 880, 392
WINDOW = {"width": 1100, "height": 490}
COLOURS_OF_A_VIEW = 64
LINE, LINES_SHOWN = 17, 13
LEFT, RIGHT, CHART_WIDTH = 16, 462, 402
CHART_TOP, CHART_HEIGHT = 44, 150
LANES_TOP, LANE = 236, 26
GAP_S = 0.04
"""Spans of a lane that are nearer to each other are drawn as one."""

LANES = {"evaluation": "evaluation", "replica": "rollout server", "sandbox": "sandboxes"}
COLOURS = {
    "evaluation": "#b090f5",
    "rollout server": "#6ea4ff",
    "sandboxes": "#f0a04b",
    "trainer": "#4cc38a",
}
WORK = ("generate", "score", "train", "evaluate")
STYLE = """\
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6e9ee; }
.quiet { fill: #98a2b3; } .rate { fill: #6ea4ff; } .bad { fill: #f2778a; } .good { fill: #4cc38a; }
.reward { stroke: #6ea4ff; } .heldout { stroke: #4cc38a; }
polyline { fill: none; stroke-width: 1.6; } circle { fill: #181c23; }"""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a run directory has of a run.

    Attributes:
        began_at: Unix time of its first span, seconds.
        ended_at: of its last one.
    """

    name: str
    steps: Sequence[dict[str, Any]]
    spans: Sequence[dict[str, Any]]
    answers: Sequence[dict[str, Any]]
    evaluations: Sequence[dict[str, Any]]
    summary: dict[str, Any]
    began_at: float
    ended_at: float

    @classmethod
    def read(cls, run_dir: Path) -> "Recording":
        """From the files of a run that has ended."""
        spans = [one for one in _lines(run_dir / "timeline.jsonl") if one["kind"] in WORK]
        return cls(
            name=run_dir.name,
            steps=_lines(run_dir / "metrics.jsonl"),
            spans=spans,
            answers=_lines(run_dir / "trajectories.jsonl"),
            evaluations=_lines(run_dir / "evaluations.jsonl"),
            summary=json.loads((run_dir / "summary.json").read_text(encoding="utf-8")),
            began_at=min(one["start"] for one in spans),
            ended_at=max(one["end"] for one in spans),
        )

    def share(self, at: float) -> float:
        """A Unix time as a share of the run."""
        whole = self.ended_at - self.began_at
        return min(1.0, max(0.0, (at - self.began_at) / whole))

    def ends(self) -> dict[int, float]:
        """When each train step ended, as a share of the run; 0 is its beginning."""
        trained = [one for one in self.spans if one["kind"] == "train"]
        return {0: 0.0} | {one["step"]: self.share(one["end"]) for one in trained}


def picture(run: Recording, views: Sequence[bytes] = ()) -> str:
    """The text of the file; `views` of the page as PNG follow the demo."""
    seconds = PLAY_S + HOLD_S + PAGE_S * len(views)
    played = PLAY_S / seconds
    lines, strip = _terminal(run, played)
    cards, card_strip = _answers(run, played)
    sweep = f"@keyframes sweep {{ from {{ transform: none; }} {played:.1%} {{ {_sweep()} }} }}"
    images, appear = _page(views, seconds)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>A run of the demo: {escape(run.name)}</title>",
        "<!-- Made by docs/make_moving_picture.py from the files of that run. -->",
        f"<style>\n{STYLE}\n{_motion([strip, card_strip, sweep, *appear], seconds)}\n</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#101318"/>',
        f'<text x="{LEFT}" y="27" class="quiet">$ make demo</text>',
        f'<text x="{RIGHT}" y="27" class="quiet">http://127.0.0.1:8000</text>',
        *lines,
        *cards,
        *_chart(run),
        *_lanes(run),
        *images,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _motion(rules: Sequence[str], seconds: float) -> str:
    """Keyframes and who follows them; with reduced motion all stand at their end."""
    moving = (
        f".strip {{ animation: strip {seconds:g}s step-end infinite; }}\n"
        f".cards {{ animation: cards {seconds:g}s step-end infinite; }}\n"
        f".sweep {{ animation: sweep {seconds:g}s linear infinite; {_sweep()} }}"
    )
    still = (
        "@media (prefers-reduced-motion: reduce) {"
        " .strip, .cards, .sweep, .view { animation: none; } }"
    )
    return "\n".join([*rules, moving, still])


def _page(views: Sequence[bytes], seconds: float) -> tuple[list[str], list[str]]:
    """Views of the page, one after the other, and when each is seen."""
    images, rules = [], [".view { opacity: 0; }"]
    for number, view in enumerate(views):
        begin = (PLAY_S + HOLD_S + number * PAGE_S) / seconds
        rules.append(
            f"@keyframes view{number} {{ 0% {{ opacity: 0; }} {begin:.2%} {{ opacity: 1; }} "
            f"{begin + PAGE_S / seconds:.2%} {{ opacity: 0; }} }}\n"
            f".view{number} {{ animation: view{number} {seconds:g}s step-end infinite; }}"
        )
        content = base64.b64encode(view).decode()
        images.append(
            f'<image class="view view{number}" width="{WIDTH}" height="{HEIGHT}" '
            f'href="data:image/png;base64,{content}"/>'
        )
    return images, rules


def _sweep() -> str:
    return f"transform: translateX({CHART_WIDTH}px);"


def _terminal(run: Recording, played: float) -> tuple[list[str], str]:
    """The command's lines, which scroll through a window."""
    ends, summary = run.ends(), run.summary
    said: list[tuple[float, str, str]] = []
    heldout, steps = run.summary["heldout_pass_rate_before"], len(run.steps)
    for one in run.steps:
        heldout = heldout if one["heldout_pass_rate"] is None else one["heldout_pass_rate"]
        text = (
            f"step {one['step']}/{steps}  reward {one['reward']:.2f}  held-out {heldout:.2f}  "
            f"staleness {one['staleness_max']:g}"
        )
        said.append((ends[one["step"]], "", text))
    groups = {name: count for name, count in summary["ledger"].items() if count}
    admitted = groups.pop("admitted")
    parts = " + ".join(f"{count} {name}" for name, count in groups.items())
    before, after = (summary[f"heldout_pass_rate_{end}"] for end in ("before", "after"))
    said += [
        (1.0, "good", f"finished in {summary['wall_s']:.0f} s on 2 cores, without a GPU"),
        (1.0, "good", f"held-out pass rate {before:.0%} -> {after:.0%}"),
        (1.0, "good", f"{admitted} sample groups = {parts}"),
    ]
    rows = [
        f'<text x="0" y="{(number + 1) * LINE - 4}" class="{kind}">{escape(text)}</text>'
        for number, (_, kind, text) in enumerate(said)
    ]
    times = [(at * played, number + 1) for number, (at, _, _) in enumerate(said)]
    stops, last = _stops(times, lambda count: LINE * (LINES_SHOWN - count))
    hidden = LINES_SHOWN * LINE
    first = f"0% {{ transform: translateY({hidden}px); }}"
    keyframes = f"@keyframes strip {{ {first} {stops} }}\n.strip {{ {last} }}"
    window = (
        f'<svg x="{LEFT}" y="{CHART_TOP}" width="430" height="{hidden}"><g class="strip">',
        *rows,
        "</g></svg>",
    )
    return list(window), keyframes


def _answers(run: Recording, played: float) -> tuple[list[str], str]:
    """One answer of the model at a time, with the sandbox's verdict."""
    ends, chosen, seen = run.ends(), list[dict[str, Any]](), -3
    for one in run.answers:
        if one["step"] >= seen + 3:
            seen = one["step"]
            chosen.append(one)
    top = CHART_TOP + LINES_SHOWN * LINE + 26
    rows = []
    for number, one in enumerate(chosen):
        y, good = number * 90, one["reward"] > 0
        task = escape(str(one["messages"][-1]["content"]))
        rows += [
            f'<text y="{y + 12}" class="quiet">step {one["step"]}: {task}</text>',
            f'<text y="{y + 36}">{escape(one["answer"].strip()[:52])}</text>',
            f'<text y="{y + 60}" class="{"good" if good else "bad"}">{one["verdict"]}</text>',
        ]
    times = [(ends.get(one["step"], 0.0) * played, n) for n, one in enumerate(chosen)]
    stops, last = _stops(times, lambda number: -90 * number)
    window = (
        f'<line x1="{LEFT}" x2="{LEFT + 424}" y1="{top - 14}" y2="{top - 14}" stroke="#272d37"/>',
        f'<svg x="{LEFT}" y="{top}" width="430" height="80"><g class="cards">',
        *rows,
        "</g></svg>",
    )
    keyframes = f"@keyframes cards {{ 0% {{ transform: none; }} {stops} }}\n.cards {{ {last} }}"
    return list(window), keyframes


def _stops(times: Sequence[tuple[float, int]], offset: Any) -> tuple[str, str]:
    """Keyframes of a strip that jumps at these shares of the loop, and its last place."""
    places = {f"{at:.2%}": offset(number) for at, number in times}
    stops = " ".join(f"{at} {{ transform: translateY({y}px); }}" for at, y in places.items())
    return stops, f"transform: translateY({offset(times[-1][1])}px);"


def _chart(run: Recording) -> Iterator[str]:
    """Mean reward and held-out pass rate over time, uncovered from left to right."""
    ends = run.ends()
    bottom = CHART_HEIGHT - 6

    def place(step: int, rate: float) -> str:
        return f"{ends[step] * CHART_WIDTH:.1f},{bottom - rate * (bottom - 8):.1f}"

    reward = " ".join(place(one["step"], one["reward"]) for one in run.steps)
    rates = [place(one["step"], one["pass_at"]["1"]) for one in run.evaluations if one["pass_at"]]
    yield f'<text x="{RIGHT}" y="{CHART_TOP + 2}" class="rate">mean reward</text>'
    yield f'<text x="{RIGHT + 100}" y="{CHART_TOP + 2}" class="good">held-out pass rate</text>'
    yield f'<svg x="{RIGHT}" y="{CHART_TOP + 8}" width="{CHART_WIDTH}" height="{CHART_HEIGHT}">'
    for rate in (0, 0.5, 1):
        y = bottom - rate * (bottom - 8)
        yield f'<line x1="0" x2="{CHART_WIDTH}" y1="{y:g}" y2="{y:g}" stroke="#272d37"/>'
    yield f'<polyline class="reward" points="{reward}"/>'
    yield f'<polyline class="heldout" points="{" ".join(rates)}"/>'
    for point in rates:
        at, height = point.split(",")
        yield f'<circle class="heldout" cx="{at}" cy="{height}" r="3"/>'
    yield from _cover(CHART_HEIGHT)


def _lanes(run: Recording) -> Iterator[str]:
    """Who worked when, uncovered from left to right."""
    by_lane: dict[str, list[tuple[float, float]]] = {name: [] for name in COLOURS}
    for one in run.spans:
        word = one["lane"].partition(" ")[0]
        by_lane[LANES.get(word, "trainer")].append((one["start"], one["end"]))
    for number, name in enumerate(by_lane):
        y = LANES_TOP + number * (LANE + 12)
        yield f'<text x="{RIGHT}" y="{y}" class="quiet">{name}</text>'
    height = len(by_lane) * (LANE + 12)
    yield f'<svg x="{RIGHT}" y="{LANES_TOP + 4}" width="{CHART_WIDTH}" height="{height}">'
    for number, (name, spans) in enumerate(by_lane.items()):
        y = number * (LANE + 12)
        yield f'<g fill="{COLOURS[name]}">'
        for start, end in _joined(spans):
            x = run.share(start) * CHART_WIDTH
            width = max(0.6, run.share(end) * CHART_WIDTH - x)
            yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 6}"/>'
        yield "</g>"
    yield from _cover(height)


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1] + GAP_S:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _cover(height: int) -> Iterator[str]:
    """Hides what has not happened yet; its left edge is the time."""
    yield f'<g class="sweep"><rect width="{CHART_WIDTH}" height="{height}" fill="#101318"/>'
    yield f'<line y2="{height}" stroke="#e6e9ee"/></g></svg>'


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def views_of(run_dir: Path) -> list[bytes]:
    """The page over a run, and over the newest runs beside it, in few colours."""
    from make_screenshots import compared, seen, telling, viewed  # needs a browser
    from playwright.sync_api import sync_playwright

    run = RunFolder.open(run_dir)
    here, token = f"#/{run.run_id}", f"trajectories/{telling(run)[1]}"
    views = [(f"{here}/{view}", "", "") for view in ("learning", "timeline", "tasks")]
    views += [(f"{here}/{token}", "logprob gap", ".token-facts")]
    views += [(compared(run_dir.parent), "", ".grid .panel")]
    with viewed(run_dir.parent) as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        window: dict[str, Any] = {"viewport": WINDOW, "color_scheme": "dark"}
        pictures = [
            seen(browser, root + view, press, upto, **window) for view, press, upto in views
        ]
        browser.close()
    return [_smaller(one) for one in pictures]


def _smaller(png: bytes) -> bytes:
    small = io.BytesIO()
    drawn = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS_OF_A_VIEW)
    drawn.save(small, "png", optimize=True)
    return small.getvalue()


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args().run_dir
    drawn = picture(Recording.read(run_dir), views_of(run_dir))
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
