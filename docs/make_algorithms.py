"""Writes docs/algorithms.md from the docstrings of the code: `python docs/make_algorithms.py`."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from services.protocol.run.algorithm_preset import ALGORITHM_PRESETS, AlgorithmPreset

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
ALGORITHMS = ROOT / "services" / "trainer" / "algorithms"
PARTS = {
    "Advantages": (
        "grpo",
        "dr_grpo",
        "rloo",
        "maxrl",
        "lite_ppo",
        "best",
        "gdpo",
        "reinforce_plus_plus",
        "dapo",
    ),
    "Advantages by token": ("gae", "turns", "distillation", "top_entropy"),
    "Critic": ("value_loss",),
    "Losses": ("clip", "dppo", "gspo", "cispo", "sapo", "reinforce", "cross_entropy", "user_loss"),
    "Sums": ("aggregation",),
    "Importance corrections": ("correction", "sequence_mask"),
    "KL": ("kl",),
    "Entropy": ("entropy",),
    "Safety": ("log_ratio",),
}
HEAD = """# Algorithms

After this page you can choose the algorithm of a run, or write a loss of your own.

An algorithm is a choice of advantage, loss, aggregation and correction. `algorithm.preset`
makes the choice of a paper; keys of the run file override it. `millrace run FILE --dry-run` prints
the algorithm that results, and what the preset leaves to the run file. All keys are in
[your-own-tasks.md](your-own-tasks.md), and the measurements of a step in
[diagnostics.md](diagnostics.md). `python docs/make_algorithms.py` makes this page from the
docstrings; change those, not this page.

Words: *behaviour* logprobs come from the engine that sampled, *proximal* ones are recomputed
at the start of the train step, *current* ones belong to the weights being trained; `A` is the
advantage, `R` the reward, `sg` a stop-gradient.

## A loss of your own

```python
# my_loss.py, beside the run file
def my_loss(tokens, algorithm):
    ratio = (tokens.current - tokens.behaviour).exp()
    return -ratio.clamp(max=1 + algorithm.clip_high) * tokens.advantage
```

```yaml
algorithm:
  loss: my_loss.py:my_loss
```

`tokens` is `services.trainer.algorithms.losses.tokens.ScoredTokens`; the function returns one loss
per token. The trainer's ranks run the file unchanged, so it must have the same path on all their
nodes. They run it only with `user_losses: true` in the trainer's `args`, because everybody who may
start runs may then run code there.
"""
KEYS = """Keys are those of `algorithm`; `max_tokens` is `sampling.max_tokens`, the longest answer.
Where the run or a source of tasks has an environment, `max_tokens` bounds each call, and no preset
sets `overlong_limit` and `overlong_buffer`.
A preset never sets the size of a batch, `minibatches` or `learning_rate`: these depend on the model
and the machine.
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD, "## Presets\n", _presets()]
    for title, names in PARTS.items():
        parts.append(f"## {title}\n")
        parts += [_module(next(ALGORITHMS.rglob(f"{name}.py"))) for name in names]
    return "\n".join(parts)


def _presets() -> str:
    rows = ["| preset | keys that it sets | what it leaves to the run file |", "|---|---|---|"]
    for name, preset in ALGORITHM_PRESETS.items():
        rows.append(f"| `{name}` | {', '.join(_keys(preset))} | {preset.left} |")
    return "\n".join([*rows, "", KEYS])


def _keys(preset: AlgorithmPreset) -> Iterator[str]:
    for key, value in preset.keys.items():
        if isinstance(value, dict):
            yield from (f"`{key}.{name}: {one}`" for name, one in value.items())
        else:
            yield f"`{key}: {value}`"
    for key, share in preset.of_longest.items():
        yield f"`{key}`: " + ("`max_tokens`" if share == 1 else f"{share:g} `max_tokens`")
    for key, value in preset.of_stale.items():
        yield f"with `schedule.max_staleness` above 0 `{key}: {value}`"
    for key, value in preset.schedule.items():
        yield f"`schedule.{key}: {json.dumps(value)}`"


def _module(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    title, _, rest = (ast.get_docstring(tree) or "").partition("\n")
    parts = [f"### {title.rstrip('.')}\n"] + ([f"{rest.strip()}\n"] if rest.strip() else [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            text = re.split(r"\n\n(?:Args|Returns|Raises):\n", ast.get_docstring(node) or "")[0]
            parts.append(f"`{node.name}`: {text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
