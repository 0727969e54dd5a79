"""Writes the measured tables of the pages on sandboxes: `python docs/make_sandboxes.py`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import BASELINES, ROOT, markdown, with_table

GUIDE, COMPARISON = "docs/give-your-agent-a-sandbox.md", "docs/comparison.md"
EXAMPLE = "examples/code_interpreter/README.md"
_NO_CALLS = ("left", "memory", "slower", "hostile")
"""Kinds of problems of a soak that are no calls; each has rows of its own."""


def _read(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((BASELINES / f"{name}.json").read_text(encoding="utf-8"))
    return figures


def code_interpreter() -> str:
    """Held-out pass rates, with the tool and without, for each model."""
    found = _read("code_interpreter")
    rows = [["", "model of seed", "before", "after", "train steps", "minutes"]]
    for way in ("with the tool", "without it"):
        for one in found[way]:
            rates = one["heldout_pass_rate"]
            after = f"**{rates[-1][1]:.0%}**" if len(rates) > 1 else "no rewards to learn from"
            minutes = f"{one['seconds'] / 60:.1f}"
            before = f"{rates[0][1]:.0%}"
            rows.append([way, str(one["seed"]), before, after, str(one["steps"]), minutes])
    return "\n" + markdown(rows)


def workspaces() -> str:
    """The soaks of workspaces, a column for each tier."""
    columns = [_soak(_read(name)) for name in ("soak_workspaces", "soak_workspaces_b")]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [["", "tier A", "tier B"]]
    rows += [[name, *(column.get(name, "") for column in columns)] for name in names]
    return "\n" + markdown(rows)


def _soak(soak: dict[str, Any]) -> dict[str, str]:
    """What a soak recorded, by what it is."""
    ends, kills, crowd, hostile = (soak[one] for one in ("ends", "kills", "crowd", "hostile"))
    named = ", ".join(f"{many} {kind}s" for kind, many in sorted(kills.items()))
    found = {
        "opened, used, closed": f"{soak['workspaces']:,}",
        "killed at random": f"{sum(kills.values())}: {named}",
        "ended by a kill, by name": f"{soak['workspaces'] - ends['closed']}",
        "calls that came back wrong": str(_count(soak, lambda kind: kind not in _NO_CALLS)),
    }
    for what in ("processes", "mounts", "files", "descriptors", "rss_mib"):
        shown = "memory of the service, MiB" if what == "rss_mib" else what
        held = (soak["before"][what], soak["at_the_end"][what])
        found[f"{shown}, before and after"] = f"{held[0]}, {held[1]}"
    if rounds := [f"{one['rss_mib']:g}" for one in soak.get("after_each_round", ())]:
        found["after each round of many at once and attacks"] = ", ".join(rounds)
    tenths = soak["milliseconds_first_and_last_tenth"]
    for step in ("open", "use", "close"):
        pairs = zip(tenths[step], tenths["yardstick"], strict=True)
        first, last = (one / unit for one, unit in pairs)
        name = f"{step}: first and last tenth, in starts of a plain shell"
        found[name] = f"{first:.1f}, {last:.1f}"
    found["open at once"] = f"{crowd['open']}, {crowd['mib_each']} MiB each"
    found["a call of each of them"] = f"{crowd['seconds_for_a_call_of_each']} s"
    if hostile:
        found["one left open with hostile programs"] = f"{hostile['minutes']:g} minutes"
        wrong = _count(soak, lambda kind: kind == "hostile")
        found["their attacks, and how many changed anything"] = f"{hostile['attacks']:,}, {wrong}"
        found["calls of its neighbour beside them"] = f"{hostile['neighbour']['calls']:,}"
    return found


def _count(soak: dict[str, Any], of: Callable[[str], bool]) -> int:
    """Problems of these kinds."""
    return sum(of(problem.partition(":")[0]) for problem in soak["problems"])


def calls() -> str:
    """A call of a workspace beside plain processes."""
    found = _read("reward_calls")["milliseconds"]
    plain = found["a program without any wall"]
    rows = [["the same line of Python", "times a program without any wall"]]
    rows += [[name, f"{one / plain:.2f}"] for name, one in found.items()]
    return "\n" + markdown(rows)


TABLES: list[tuple[str, str, Callable[[], str]]] = [
    (GUIDE, "code interpreter", code_interpreter),
    (EXAMPLE, "code interpreter", code_interpreter),
    (GUIDE, "workspaces", workspaces),
    (COMPARISON, "calls", calls),
]


def filled() -> dict[Path, str]:
    """The pages with their tables."""
    pages: dict[Path, str] = {}
    for name, table, make in TABLES:
        path = ROOT / name
        page = pages.get(path) or path.read_text(encoding="utf-8")
        pages[path] = with_table(page, table, make())
    return pages


if __name__ == "__main__":
    for path, page in filled().items():
        path.write_text(page, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201
