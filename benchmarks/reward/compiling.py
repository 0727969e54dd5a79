"""What compiling costs the reward service, beside the compiler alone.

    python -m benchmarks.reward.compiling [--json]

The same C++ answers are compiled by the service for the first time, the start of the jail included,
and by plain g++ with the same flags: as a shell would, without a precompiled header, and with the
one that the service uses. Then the service is asked for programs that it knows, and a new service
for those that the first one has kept on the disk. All ways take turns.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.report import Bar, in_turn, options_of, ratio, show, write
from benchmarks.reward.load import samples
from benchmarks.reward.ways import measured
from services.reward_service.config import RewardServiceConfig
from services.reward_service.languages import languages
from services.reward_service.sandbox.compiler import Compiler
from services.reward_service.sandbox.self_test import strongest_jail

FIRST, PLAIN, HEADER = "millrace, first", "g++", "g++, same header"
KNOWN, KEPT = "millrace, known", "millrace, kept on disk"
LANGUAGE = languages()["cpp17"]


def main() -> int:
    """Run everything and print the table; 1 when a bar is missed."""
    parser = options_of(__doc__, "reward_compiling", rounds=(10, "how often each way has its turn"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-compiling-") as folder:
        Path(folder).chmod(0o755)
        rounds = asyncio.run(_measure(Path(folder), options.rounds))
    cpu, wall = (
        {way: [1000 * one[way][figure] for one in rounds] for way in rounds[0]}
        for figure in ("cpu_s", "wall_s")
    )
    ways = [FIRST, PLAIN, HEADER, KNOWN, KEPT]
    rows = [
        [
            way,
            *(f"{median(one[way]):.1f}, {ratio(one[way], one[PLAIN]):.3f}" for one in (cpu, wall)),
        ]
        for way in ways
    ]
    head = ["way", "CPU-ms, over plain g++", "ms, over plain g++"]
    show(head, rows, title="one C++ answer")
    bars = [
        Bar(
            name="CPU time of a first build over plain g++",
            found=ratio(cpu[FIRST], cpu[PLAIN]),
            limit=1.3,
            at_most=True,
        ),
        Bar(
            name="CPU time of a first build over g++ with the same header",
            found=ratio(cpu[FIRST], cpu[HEADER]),
            limit=1.3,
            at_most=True,
        ),
        Bar(name="ms for a known program", found=median(wall[KNOWN]), limit=5.0, at_most=True),
        Bar(name="ms for a kept program", found=median(wall[KEPT]), limit=5.0, at_most=True),
    ]
    print(*bars, sep="\n")
    medians = {way: {"cpu_ms": median(cpu[way]), "wall_ms": median(wall[way])} for way in ways}
    write(
        options.json,
        {"bars": {one.name: round(one.found, 3) for one in bars}, "medians": medians},
    )
    return 0 if all(one.met for one in bars) else 1


async def _measure(folder: Path, rounds: int) -> list[dict[str, dict[str, float]]]:
    config = RewardServiceConfig(
        toolchain_dir=str(folder / "toolchain"), header_cache_dir=str(folder / "kept")
    )
    jail, _ = await strongest_jail(config)
    compiler = Compiler(config, jail)
    sources = [one.source for one in samples("cpp17", rounds + 1, tests=())]
    await compiler.compile(sources.pop(), LANGUAGE)  # makes the header, too
    (header,) = compiler.shared.iterdir()
    found = []
    for number, source in enumerate(sources):
        taken: dict[str, dict[str, float]] = {}
        for way in in_turn([FIRST, PLAIN, HEADER], number):
            with measured() as taken[way]:
                if way == FIRST:
                    await compiler.compile(source, LANGUAGE)
                else:
                    _plain(source, folder, header if way == HEADER else None)
        with measured() as taken[KNOWN]:
            known = await compiler.compile(source, LANGUAGE)
        later = Compiler(config, jail)
        await later.identity(LANGUAGE)  # once a service
        with measured() as taken[KEPT]:
            kept = await later.compile(source, LANGUAGE)
        for one in (known, kept):
            assert one.record is not None
            assert one.record.cached, "it was compiled again"
        found.append(taken)
    return found


def _plain(source: str, folder: Path, header: Path | None) -> None:
    toolchain = LANGUAGE.toolchain
    assert toolchain is not None
    use = toolchain.use_header if header is not None else ()
    given = (flag.replace("{folder}", str(header)) for flag in (*use, *toolchain.flags))
    command = [toolchain.compiler, *given]
    subprocess.run(command, input=source.encode(), cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main())
