"""Which `rollout_server.in_flight` costs open answers least, by the length of their context.

    python -m benchmarks.in_flight

One trainer, one real engine and the weight bus, as in `benchmarks.weight_push`. Answers with
contexts of 1k, 8k and 32k tokens are under way while new weights come. The cost of a push is the
time that the engine would have needed, without one, for the tokens that it did not make from the
publication until every answer has a token under the new weights. It is compared with the time of
one prefill of the open contexts, measured in the same run.
"""

import asyncio
import logging
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import ray

from benchmarks.report import MIB, by_name, machine, options_of, show, write
from benchmarks.weight_push.world import World
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.protocol.weights.weight_bus import NAMESPACE

POLICIES = ("keep", "keep_stale", "drain")
SIZE_MB = 3
ANSWERS = (1024, 2048)
"""Tokens of the answers that are under way."""
QUIET_S = 2.0


def main() -> None:
    """Measure, print, and write the figures if asked."""
    options = options_of(
        __doc__,
        "in_flight",
        contexts=([1024, 8192, 32_768], "tokens of the prompts"),
        rounds=(3, "pushes for each"),
    ).parse_args()
    figures = {
        **machine(),
        "answers": ANSWERS,
        "policies": {one: run(one, options.contexts, options.rounds) for one in POLICIES},
    }
    report(figures)
    write(options.json, figures)


def run(policy: str, contexts: list[int], rounds: int) -> dict[str, Any]:
    """All contexts under one policy, in a Ray of its own."""
    with PrivateCluster(num_cpus=2) as cluster, tempfile.TemporaryDirectory() as folder:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=2,
            num_gpus=0,
            object_store_memory=256 * MIB,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(cluster.folder),
        )
        try:
            return asyncio.run(measure(policy, contexts, rounds, Path(folder)))
        finally:
            ray.shutdown()


async def measure(
    policy: str, contexts: list[int], rounds: int, folder: Path
) -> dict[str, dict[str, list[float]]]:
    """Figures of each round by context; all in seconds."""
    longest = max(contexts) + max(ANSWERS) + 1
    world = await World.open(
        SIZE_MB,
        1,
        folder,
        positions=longest,
        max_model_len=longest,
        kv_cache_gb=0.6,
        in_flight=policy,
    )
    try:
        return {str(one): await of_context(world, one, rounds) for one in contexts}
    finally:
        await world.close()


async def of_context(world: World, context: int, rounds: int) -> dict[str, list[float]]:
    """Pushes to an engine whose answers have this context."""
    taken = []
    for _ in range(rounds):
        began = time.monotonic()
        await world.on_replicas("begin_answers", ANSWERS, context)
        (first,) = await world.on_replicas("next_tokens")
        await asyncio.sleep(QUIET_S)
        quiet_end = time.monotonic()
        (tokens,) = await world.on_replicas("tokens", quiet_end - QUIET_S, quiet_end)
        rate = tokens / QUIET_S
        push = await world.ours()
        (again,) = await world.on_replicas("next_tokens")
        (made,) = await world.on_replicas("tokens", push.started, again)
        (gap,) = await world.on_replicas("largest_gap", push.started, again)
        taken.append(
            {
                "prefill": first - began,
                "commit": push.total,
                "gap": gap,
                "lost": again - push.started - made / rate,
            }
        )
        await world.on_replicas("end_answers")
    return by_name(taken)


def report(figures: dict[str, Any]) -> None:
    """Print one row for each context and policy."""
    rows = []
    contexts = next(iter(figures["policies"].values()))
    for context in contexts:
        for policy, found in figures["policies"].items():
            one = {name: median(values) for name, values in found[context].items()}
            rows.append([
                context,
                policy,
                *(f"{one[name]:.2f}" for name in ("prefill", "commit", "gap", "lost")),
                f"{one['lost'] / one['prefill']:.2f}",
            ])  # fmt: skip
    columns = ["context", "in_flight", "prefill, s", "to commit, s", "token gap, s", "lost, s"]
    show(
        [*columns, "lost / prefill"],
        rows,
        title=f"answers of {figures['answers']} tokens, medians",
    )


if __name__ == "__main__":
    main()
