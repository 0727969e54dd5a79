"""Learning curves of students of a teacher, beside their twins that learn from rewards, and of
students whose answers are old.

Nothing but the trainer's own rank, and a model of transformers that samples: no services, no
timing. The same command gives the same numbers again on the same machine:

    python -m benchmarks.one_process [--only '*/teacher'] [--seeds 0 1 2] [--draw]

Each finished run is in the results file at once, and is not run again: press Ctrl-C at any time,
and start the same command again.
"""

import fnmatch
import tempfile
from pathlib import Path

from benchmarks.learning.matrix import Configuration
from benchmarks.learning.results import Results
from benchmarks.one_process.matrix import TEACHER, configurations, with_teacher
from benchmarks.one_process.page import PAGE, RESULTS, draw, filled
from benchmarks.report import options_of
from examples.tiny_code.make_model import MODELS, TASK_FILE, make_model, write_tasks

EARLY_STEPS = 40
"""Of the 100 batches of demonstrations that the demo's model is shown."""


def main() -> None:
    """Run what is missing, then draw."""
    parser = options_of(
        __doc__,
        "one_process",
        only=(["*"], "patterns of names"),
        seeds=[0, 1, 2],
        steps=(60, "train steps of each run"),
        draw=(False, "draw the results, run nothing"),
    )
    parser.set_defaults(json=RESULTS)
    options = parser.parse_args()
    results = Results.read(options.json)
    for seed in [] if options.draw else options.seeds:
        missing = [
            one
            for one in configurations()
            if any(fnmatch.fnmatch(one.name, pattern) for pattern in options.only)
            and not results.has(one, seed=seed, steps=options.steps)
        ]
        if missing:
            run_seed(with_teacher(missing), results, seed=seed, steps=options.steps)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(PAGE, draw(results), sep="\n")


def run_seed(missing: list[Configuration], results: Results, *, seed: int, steps: int) -> None:
    """Run them all from the weights of one seed."""
    import torch.distributed as dist

    from benchmarks.one_process.loop import Loop
    from examples.tiny_code.warm_start import make_checkpoint
    from services.trainer.config import TrainerConfig
    from services.trainer.rank.process_group import join_group, open_store

    model = MODELS / f"tiny_code-seed{seed}"
    write_tasks(TASK_FILE)
    make_model(model, seed)
    config = TrainerConfig(model=str(model), world_size=1)
    join_group(config, 0, open_store("127.0.0.1"), "127.0.0.1")
    teacher = None
    try:
        with tempfile.TemporaryDirectory(prefix="one-process-") as folder:
            early = Path(folder) / "early"
            make_checkpoint(str(early), seed, EARLY_STEPS)
            models = {"tiny_code": model, "early": early}
            loop = Loop(models, TASK_FILE, Path(folder), seed)
            for number, one in enumerate(missing, 1):
                line = loop.learn(one, steps, teacher)
                if one.name == TEACHER:
                    teacher = loop.weights
                results.add(line)
                print(f"{number}/{len(missing)} {line.summary}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
