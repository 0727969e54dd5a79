"""Memory of engine and rank in and out of their turns on a shared device, and the cost of a turn.

    python -m benchmarks.shared_placement

The services of deploy/laptop.yaml with `placement: shared`: a real engine and a real rank on CPUs,
with a model of 134 MB. Each round is a turn with one train step on random answers. Memory is the
processes' anonymous memory; pages of files and of staged versions are not in it.
"""

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.models import make_model
from benchmarks.random_batch import Shape, random_batch, run_start
from benchmarks.report import MIB, Bar, machine, options_of, show, write
from millrace_tools.capacity.machine import free_port
from millrace_tools.demo.demo import DemoOptions
from services.peers import bus_peer, trainer_peer
from services.protocol.weights.weight_bus import ReplicaState

SHAPE = 512, 1536, 8, 8, 4, 64
VOCABULARY = 8192
BATCH = Shape(groups=2, size=4, prompt=16, response=48)
REPLICA, RANK = "ray::ServeReplica:rollout_server", "ray::TrainerRank"
_UP_S, _SETTLE_S = 300.0, 0.5


def main() -> None:
    """Measure, print, and write the figures if asked."""
    options = options_of(__doc__, "shared_placement", rounds=(5, "turns")).parse_args()
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        model = make_model(Path(folder) / "model", SHAPE, vocabulary=VOCABULARY, positions=256)
        shared = {"model": str(model), "placement": "shared"}
        demo = DemoOptions(seed=0, port=free_port(), steps=None)
        with deployed(demo, Console(quiet=True), trainer=shared, rollout_server=shared):
            figures = asyncio.run(measure(Path(folder), options.rounds))
        figures |= machine() | {"model_bytes": model_bytes(model)}
    report(figures)
    write(options.json, figures)


def model_bytes(folder: Path) -> int:
    """Of the weights in float32."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Bytes of each process in each phase, and seconds of a turn's parts, by round."""
    trainer, found = trainer_peer(), list[dict[str, Any]]()
    await trainer.start_run(run_start(folder / "checkpoints"))
    await sampling()
    for step in range(1, rounds + 1):
        one: dict[str, Any] = {"sampling": memory()}
        began = time.monotonic()
        await trainer.begin_turn()
        one["begin_s"] = time.monotonic() - began
        one["turn"] = memory()
        began = time.monotonic()
        await trainer.train(random_batch(step, BATCH, vocabulary=VOCABULARY))
        one["step_s"] = time.monotonic() - began
        began = time.monotonic()
        await trainer.end_turn()
        one["end_s"] = time.monotonic() - began
        await sampling()
        one["awake_s"] = time.monotonic() - began
        found.append(one)
    return {"rounds": found}


async def sampling() -> None:
    """Wait until every replica serves again, and pages that were freed are gone."""
    bus, revision = bus_peer(), -1
    async with asyncio.timeout(_UP_S):
        while True:
            table = await bus.watch(revision, 1.0)
            if table.members and all(one.state is ReplicaState.LIVE for one in table.members):
                break
            revision = table.revision
    await asyncio.sleep(_SETTLE_S)


def memory() -> dict[str, int]:
    """Bytes of anonymous memory of the rank, and of the engine, which its replica forks."""
    found = {"engine": 0, "rank": 0}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if _title(process).startswith(RANK):
                found["rank"] += _anonymous(process.pid)
            elif _title(process.parent()).startswith(REPLICA):
                found["engine"] += _anonymous(process.pid)
    return found


def _title(process: psutil.Process | None) -> str:
    return "" if process is None else " ".join(process.cmdline())


def _anonymous(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))


def report(figures: dict[str, Any]) -> None:
    """Print the rounds and the bars."""
    rows = [
        [
            str(number),
            *(
                f"{one[phase][name] / MIB:.0f}"
                for name in ("engine", "rank")
                for phase in ("sampling", "turn")
            ),
            *(f"{one[part]:.2f}" for part in ("begin_s", "step_s", "end_s", "awake_s")),
        ]
        for number, one in enumerate(figures["rounds"], start=1)
    ]
    columns = ["turn", "engine samples", "lent", "rank parked", "in its turn"]
    columns += ["begin, s", "step, s", "end, s", "until it serves, s"]
    show(columns, rows, title=f"MiB of a model of {figures['model_bytes'] / MIB:.0f} MiB")
    print(*bars(figures), sep="\n")


def bars(figures: dict[str, Any]) -> list[Bar]:
    """What each side gives back, in models: weights of the engine; weights and moments of the
    rank, from its second turn on."""
    nbytes, later = figures["model_bytes"], figures["rounds"][1:]
    engine = median(one["sampling"]["engine"] - one["turn"]["engine"] for one in later)
    rank = median(one["turn"]["rank"] - one["sampling"]["rank"] for one in later)
    return [
        Bar(name="given back by the engine, in models", found=engine / nbytes, limit=0.9),
        Bar(name="given back by the rank, in models", found=rank / nbytes, limit=2.7),
    ]


if __name__ == "__main__":
    main()
