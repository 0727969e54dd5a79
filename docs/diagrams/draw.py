"""Draws every .dot file here as an SVG that can be read in light and in dark.

    python docs/diagrams/draw.py        # needs graphviz's `dot`

Colours are not graphviz's but those of STYLE, by the `class` of a node or an edge. An SVG names
the digest of what it was drawn from, so that a test can tell whether it is up to date.
"""

import hashlib
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
FONT = "Helvetica,Arial,sans-serif"
STYLE = """
  svg { --panel: #fbfcfd; --ink: #1f2933; --line: #66727f; --service: #dbeafe; --state: #e6f4ea;
    --closed: #fdebd0; --outside: #eceff3; --store: #efe6fb; --bytes: #b4530a; --edge: #9aa5b1;
    --one: #9cc5f0; --two: #f6c98b; --three: #a9d8b4 }
  @media (prefers-color-scheme: dark) {
    svg { --panel: #1c2128; --ink: #e3e8ee; --line: #98a4b1; --service: #1f3a5f; --state: #1d4030;
      --closed: #57391a; --outside: #30363e; --store: #3d2f57; --bytes: #f0a35e; --edge: #5c6874;
      --one: #2f5f95; --two: #8a5a20; --three: #2f6b45 }
  }
  text { fill: var(--ink); font-family: Helvetica, Arial, sans-serif }
  .graph > polygon { fill: var(--panel); stroke: none }
  .node path, .node polygon, .node ellipse { fill: var(--outside); stroke: var(--edge) }
  .node.service path { fill: var(--service) }
  .node.state path { fill: var(--state) }
  .node.closed path { fill: var(--closed) }
  .node.store path { fill: var(--store) }
  .node.frame path { fill: none; stroke-dasharray: 5 4 }
  .node.turn ellipse, .node.said path, .node.said polygon { fill: none; stroke: none }
  .edge path { stroke: var(--line); fill: none }
  .edge polygon { fill: var(--line); stroke: var(--line) }
  .edge.bytes path { stroke: var(--bytes); stroke-width: 2.5 }
  .edge.bytes polygon { fill: var(--bytes); stroke: var(--bytes) }
  .edge.back path { stroke-dasharray: 5 3 }
  .edge.life path { stroke: var(--edge) }
"""


def digest(source: str) -> str:
    """Of all that an SVG is drawn from but graphviz."""
    return hashlib.sha256((source + STYLE).encode()).hexdigest()[:16]


def drawn(source: str) -> str:
    """The SVG of a .dot file's text."""
    fonts = [f"-{kind}fontname={FONT}" for kind in "GNE"] + [f"-{kind}fontsize=12" for kind in "NE"]
    command = ["dot", "-Tsvg", "-Gpad=0.2", *fonts]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    svg = re.sub(r"<!--.*?-->\n?", "", done.stdout[done.stdout.index("<svg") :], flags=re.S)
    head, body = svg.split(">", 1)
    return f"{head}>\n<!-- drawn from {digest(source)} -->\n<style>{STYLE}</style>{body}"


def main() -> None:
    """Draw them all."""
    for path in sorted(HERE.glob("*.dot")):
        svg = drawn(path.read_text(encoding="utf-8"))
        path.with_suffix(".svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
