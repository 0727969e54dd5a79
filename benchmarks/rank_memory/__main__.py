"""What a rank holds and the most that a step takes, counted on fake tensors, beside the sizing.

    python -m benchmarks.rank_memory --json

Each case runs two train steps of rank 0 with the trainer's own model, FSDP2 and update, under
fake tensors and a fake process group: sizes are real, and nothing is computed. So 70B on 64 ranks
needs neither a GPU nor memory.
"""

from benchmarks.rank_memory import device
from benchmarks.rank_memory.cases import CASES, SMALL, Case, figures
from benchmarks.report import machine, options_of, show, write


def main() -> None:
    """Count, print, and write the figures if asked."""
    parser = options_of(
        __doc__,
        "rank_memory",
        only=("", "cases whose model has this in its name"),
        small=(False, "models of three layers"),
    )
    options = parser.parse_args()
    device.register()
    chosen = [case for case in (SMALL if options.small else CASES) if options.only in case.model]
    found = []
    for case in chosen:
        found.append(figures(case))
        _print(case, found[-1])
        write(options.json, {"machine": machine(), "cases": found})


def _print(case: Case, found: dict[str, object]) -> None:
    columns = ("", "held", "by the sizing", "most in a step", "by the sizing")
    names = ("held_gib", "held_gib_by_sizing", "most_gib", "most_gib_by_sizing")
    row = [f"{case.model}, {case.ranks} ranks", *(f"{found[name]} GiB" for name in names)]
    show(columns, [row])


if __name__ == "__main__":
    main()
