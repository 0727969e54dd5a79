"""Writes docs/performance.md, and the table of README, from the results of the benchmarks.

`python docs/make_performance.py`, after a script of benchmarks/ has written its baseline.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.weight_fanout.model import FEW, LINK_TIMEOUT_S, MANY, at_size, costs_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
BASELINES = ROOT / "benchmarks" / "baselines"
_README_TABLE = re.compile(r"(<!-- table: performance -->\n).*?(<!-- end -->)", re.S)

HEAD = """# Performance

After this page you know how fast each part is and which targets were missed. Every figure was
measured on shared CPU cores, without a GPU, together with a baseline: another system, or the same
work without Millrace. Read the ratios, because absolute times depend on the machine.

`python docs/make_performance.py` makes this page from `benchmarks/baselines/*.json`. To change a
figure, run the module that its section names with `--json`: `benchmarks/router/overhead.py` is
`python -m benchmarks.router.overhead`.
"""


def page() -> str:
    """The text of the page."""
    parts = [
        _start_up(),
        _rewards(),
        _router(),
        _weights(),
        _beside(),
        _fanout(),
        _chains(),
        _in_flight(),
        _canary(),
        _training(),
        _batches(),
        _prefixes(),
        _repeats(),
        _turns(),
        _schedules(),
        _soak(),
    ]
    parts += [_whole_runs(), _outside()]
    return "\n".join([HEAD, *filter(None, parts)])


def readme(text: str) -> str:
    """README with its table of figures made anew.

    Raises:
        ValueError: it has no place, or several, for the table.
    """
    filled, places = _README_TABLE.subn(lambda mark: mark[1] + _highlights() + mark[2], text)
    if places != 1:
        raise ValueError(f"README.md has {places} places for the table of performance, not one")
    return filled


def _read(name: str) -> Any:
    return json.loads((BASELINES / f"{name}.json").read_text(encoding="utf-8"))


_CANNOT_BE_CUT = {
    "imports of the command": "the command line's own, and of Ray",
    "Ray and the model": "the fork servers' imports and the model's making have both cores; a "
    "model that is there already is not made again",
    "services": "vLLM's imports, and the engine's configuration and start behind them",
    "run": "the training itself; nothing of it was taken away",
    "shutdown": "Serve lets calls end, and the engine's processes unwind",
}
_SHOWN_PROCESSES = 3


def _is_recorded(name: str) -> bool:
    """Whether a benchmark has written its baseline; its section comes with it."""
    return (BASELINES / f"{name}.json").exists()


def _start_up() -> str:
    results = _read("start_up")
    runs = results["runs"]
    rows = []
    for phase, why in _CANNOT_BE_CUT.items():
        seconds = median(run["phases"][phase] for run in runs)
        cpu = [run["cpu_by_phase"].get(phase, {}) for run in runs]
        names = {name for of in cpu for name in of}
        middle = {name: median(of.get(name, 0.0) for of in cpu) for name in names}
        most = sorted(middle.items(), key=lambda one: (-one[1], one[0]))[:_SHOWN_PROCESSES]
        shown = ", ".join(f"`{name}` {used:.1f}" for name, used in most)
        total = median(sum(of.values()) for of in cpu)
        rows.append(f"{phase} | {seconds:.1f} | {total:.1f} | {shown} | {why}")
    walls = ", ".join(f"{run['seconds']:.0f} s" for run in runs)
    return _section(
        "From a command to a trained model",
        f"`benchmarks/start_up.py`: `millrace demo` of seeds {runs[0]['seed']} to "
        f"{runs[-1]['seed']} on {results['cores']} cores took {walls}; the load average was "
        f"{results['load_after']} when the last one ended. Medians of seconds and CPU-seconds "
        "of all processes by phase, with those that used most, and why it takes so long. Workers "
        "are forked from processes that have done their imports "
        "([why](adr/0020-workers-of-the-demo-are-forked.md)).",
        _table("phase | seconds | CPU-s | most of them | what keeps it", rows),
    )


def _rewards() -> str:
    results = _read("reward_throughput")
    rows = [
        f"{language} | {'**Millrace**' if way == 'millrace' else way}"
        f" | {one['tests_a_second_and_core']:.0f} | {one['cpu_ms_a_test']:.1f}"
        for language, ways in sorted(results["medians"].items(), reverse=True)
        for way, one in ways.items()
    ]
    bars = [
        f"{name} | {one['bar']:g} | {one['found']:.2f} | {'yes' if one['met'] else '**no**'}"
        for name, one in results["bars"].items()
    ]
    return _section(
        "Grading code",
        "`benchmarks/reward/throughput.py`: one test after the other on one core, in "
        "Millrace's jail, in a plain subprocess without any jail, and in a bubblewrap started"
        " for each test.",
        _table("language | way | tests a second and core | CPU-ms a test", rows),
        _table("bar | wanted | found | met", bars),
    )


def _router() -> str:
    results = _read("router_overhead")
    medians = results["medians"]
    ways = list(next(iter(medians.values())))
    missed = [f"* {one}" for one in results["missed"]]
    return _section(
        "Requests through the router",
        "`benchmarks/router/overhead.py`, by requests in flight: chats of 8 tokens, streams of "
        "128, and streams that stay open. Millrace's router as every file ships it, at its own "
        "port; plain vLLM; the router behind Serve's Python proxy, which was the way before, and "
        "behind Serve's HAProxy. CPU-milliseconds of all processes a request:",
        _by_load(medians, ways, "cpu_ms", "{:.1f}"),
        "Median latency, milliseconds:",
        _by_load(medians, ways, "latencies_p50_ms", "{:.0f}"),
        "Requests a second:",
        _by_load(medians, ways, "requests_per_s", "{:.1f}"),
        "\n".join(["Missed:", "", *missed]) if missed else "No bar was missed.",
    )


def _by_load(medians: Any, ways: Sequence[str], figure: str, shape: str) -> str:
    rows = [
        " | ".join([load, *(shape.format(by_way[way][figure]) for way in ways)])
        for load, by_way in medians.items()
    ]
    return _table(" | ".join(["load", *ways]), rows)


def _weights() -> str:
    rows, bars = [], []
    for one in _read("weight_push"):
        named, idle = f"{one['bytes'] / 1e6:.0f} MB | {one['replicas']}", one["idle"]
        ours, driver, disk = (_middle(idle[way]) for way in ("ours", "driver", "checkpoint"))
        times = " | ".join(map(_ms, (ours, driver, disk)))
        rows.append(f"{named} | {times} | {driver / ours:.1f}x")
        bars += [
            f"{named} | {name} | {abs(bar['bar']):g} | {bar['reached']:.2f}"
            for name, bar in one["bars"].items()
            if not bar["met"]
        ]
    return _section(
        "Weights to rollout servers",
        "`benchmarks/weight_push`: from publish to the last commit, engines idle, median; "
        "the ratio is that of the way through the driver and the object store. Below it the "
        "bars that were missed.",
        _table(
            "weights | replicas | Millrace | through the driver | checkpoint on disk | ratio", rows
        ),
        _table("weights | replicas | bar | wanted | found", bars),
    )


def _beside() -> str:
    found = _read("weight_beside")
    rounds = found["rounds"]
    rows = [
        f"{kind} | {_ms(median(rounds[kind]))} | {middle:.3f} ({low:.3f} to {high:.3f})"
        for kind, (middle, low, high) in found["against_alone"].items()
    ]
    return _section(
        "A train step beside a push",
        f"`benchmarks/weight_push/beside.py`: {found['bytes'] / 1e6:.0f} MB; a rank has one core, "
        "and bus, relay and rollout server have the other. Medians of "
        f"{len(rounds['alone'])} rounds and their intervals of 95 %; each step is compared with "
        f"those alone before and after it. A push takes {_ms(median(rounds['push']))}. The last "
        "row has a neighbour that copies memory without a pause: what the machine itself takes. "
        "Wanted: at most 1.02 beside a push. Before it the training thread takes the snapshot, "
        f"{_ms(median(rounds['snapshot']))} here, whatever a step's length.",
        _table("step | time | against alone", rows),
    )


def _fanout() -> str:
    found = _read("weight_fanout")
    rates, nbytes = found["mbit_s"], found["nbytes"]
    rows = [
        f"{nodes} | {rates[rate]:g} | {way} | {median(one['seconds']):.2f} s | "
        f"{median(one['seconds']) / median(found[base]['seconds']):.2f} | "
        f"{median(one['sent']) / nbytes:.2f} | {one['held'] / nbytes:.2f}"
        for nodes, rate, base, name, way in (
            (1, "few", "one", "one", "relay"),
            (1, "few", "one", "two_cables", "relay, two network interfaces"),
            (FEW, "few", "one", "few", "relays"),
            (FEW, "few", "one", "direct", "each replica by itself"),
            (1, "many", "one_slow", "one_slow", "relay"),
            (MANY, "many", "one_slow", "many", "relays"),
        )
        if (one := found.get(name)) is not None  # the newest row comes with the next run
    ]
    columns, *modelled = [" | ".join(row) for row in at_size(costs_of(found))]
    lost = f"{found['cut_s']:.1f} s with a node cut off in the middle, of which the link's deadline"
    lost += f" is {LINK_TIMEOUT_S:g} s, and {found['killed_s']:.1f} s with a node killed"
    return _section(
        "Weights to many nodes",
        f"`benchmarks/weight_fanout`: {nbytes >> 20} MiB in {nbytes // found['bucket_bytes']} "
        "buckets, from publish until the last replica serves them. Nodes are network namespaces of "
        "one machine whose cables `tc` limits; relays, links and bus are real, replicas have no "
        "engine. Bytes sent by the trainer and held on a node are in models.",
        _table("nodes | Mbit/s | way | time | against one node | sent | held", rows),
        f"The other nodes had the version after {lost} ({FEW} nodes).",
        "A model of the protocol with the costs of these runs, for bfloat16 weights on real "
        "networks, buckets of 256 MiB and 16 cores for each relay. **Nothing of this was "
        "measured.**",
        _table(columns, modelled),
        "Marks that others have published, on networks of 400 Gb/s a GPU: 1T parameters from 256 "
        "to 128 GPUs in 1.3 s and 235B from 128 to 32 in 2 s, by RDMA from GPU to GPU "
        "(Perplexity); 235B on 4 nodes in 3.5 s, likewise (vLLM); 1T through host memory to 256 "
        "GPUs in 16 s (checkpoint-engine). Relays "
        "send over TCP from host memory, and a relay with 16 cores is slower than either network "
        "of the table, so both columns are alike.",
    )


def _chains() -> str:
    if not _is_recorded("soak_fanout"):
        return ""
    soak = _read("soak_fanout")
    middle, most = soak["push_s"]
    row = (
        f"{soak['seconds'] / 60:.0f} | {soak['pushes']:,} | {middle:.2f} s | {most:.2f} s"
        f" | {soak['held']:.2f} | {len(soak['problems'])}"
    )
    rows = [
        f"{kind} | {len(seconds)} | {_both(soak['others'].get(kind, []))} | {_both(seconds)}"
        for kind, seconds in sorted(soak["whole"].items())
    ]
    wrong = "".join(f"\n- {one}" for one in soak["problems"])
    return _section(
        "Chains of relays under faults",
        "`benchmarks/soak/fanout.py`: versions are pushed along a chain of four nodes, and in"
        " the midst of one something fails. Median and most of the seconds until the other nodes"
        " have that version, and until all have a version again once the fault is undone.",
        _table("minutes | pushes | median | most | models held on a node | problems", [row]),
        f"The problems:\n{wrong}" if wrong else "",
        _table("fault | times | others have it, s | whole again, s", rows),
    )


def _both(seconds: Sequence[float]) -> str:
    """Median and most."""
    return f"{median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"


def _turns() -> str:
    if not _is_recorded("shared_placement"):
        return ""
    found = _read("shared_placement")
    later = found["rounds"][1:]

    def middle(name: str) -> str:
        return f"{median(one[name] for one in later):.2f} s"

    def models(phase: str, process: str) -> str:
        return f"{median(one[phase][process] for one in later) / found['model_bytes']:.2f}"

    rows = [
        f"{process} | {models('sampling', process)} | {models('turn', process)}"
        for process in ("engine", "rank")
    ]
    times = " | ".join(map(middle, ("begin_s", "step_s", "end_s", "awake_s")))
    return _section(
        "Turns on a shared device",
        "`benchmarks/shared_placement.py`: an engine and a rank on CPUs take turns"
        f" ([one GPU](one-gpu.md)); a model of {found['model_bytes'] / 1e6:.0f} MB in float32,"
        f" medians of {len(later)} turns. Memory is anonymous memory, in models: code and caches of"
        " Python are in it.",
        _table("process | while the engine samples | in the trainer's turn", rows),
        _table("begin a turn | its step | end it | until the engine serves", [times]),
    )


def _in_flight() -> str:
    found = _read("in_flight")
    policies = found["policies"]
    rows = []
    for context in next(iter(policies.values())):
        for policy, by_context in policies.items():
            one = {name: median(values) for name, values in by_context[context].items()}
            rows.append(
                f"{int(context):,} | `{policy}` | {one['commit']:.2f} s | {one['gap']:.2f} s | "
                f"{one['lost']:.2f} s | {one['lost'] / one['prefill']:.2f}"
            )
    return _section(
        "Open answers under new weights",
        "`benchmarks/in_flight.py`: what each `rollout_server.in_flight` costs two answers whose "
        "contexts are so long. Lost is the time that the engine would have needed for the tokens "
        "that it did not make; the last column divides it by one prefill of the open contexts. For "
        "`drain` that includes the prefill of the answers that begin afterwards.",
        _table("context | in_flight | to commit | token gap | lost | in prefills", rows),
    )


def _canary() -> str:
    cases = {name: one for name, one in _read("canary").items() if isinstance(one, dict)}
    rows = [
        f"{case} | {fault} | {found} of {tries}"
        for case, one in cases.items()
        for fault, (found, tries) in one["faults"].items()
    ]
    pushes = [
        f"{case} | {one['pushes']:,} | {len(one['alarms'])} | {one['mean_gap'][1]:.4f} | "
        f"{one['mean_gap'][2]:.4f} | {one['largest_gap']:.3f}"
        for case, one in cases.items()
    ]
    return _section(
        "The canary",
        "`benchmarks/canary.py`: a rank and an engine in bfloat16, and small models that learn. "
        "Each good push must pass; gaps are in nats.",
        _table("model | good pushes | alarms | median mean gap | largest mean gap | token", pushes),
        "Loads with one fault, at times throughout the run. Stale is what stayed as it was when "
        "training began. Scores cannot show a fault that is smaller than rounding in bfloat16; "
        "[reading back](weights.md#what-proves-a-delivery) finds it in what it reads.",
        _table("model | fault | found", rows),
    )


def _middle(runs: Sequence[Mapping[str, float]]) -> float:
    return median(run["total"] for run in runs)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _training() -> str:
    step = _read("train_step")["ratios"]["wall"]
    names = {
        "trl": "TRL's GRPO trainer",
        "padded": "bare forward and backward passes, rows padded",
        "behaviour": "bare passes without padding; the ratio's anchor is the behaviour policy",
        "proximal": "bare passes and one more forward; the anchor is the proximal policy",
        "experts": "a mixture of experts: its bare passes without padding",
        "offload: optimizer": "the same step with `offload: optimizer`, for nothing on a CPU",
        "offload: all": "the same step with `offload: all`, the same",
    }
    steps = [
        f"{names[name]} | {one['median']:.2f}x | {one['low']:.2f}x to {one['high']:.2f}x"
        for name, one in step.items()
    ]
    reward = _read("time_to_reward")
    places = {"trl inline": "inline, in its own process"}
    goal = [
        f"{places.get(name, 'in a process a test')} | {one['wall']:.2f}x"
        f" | {one['wall with start-up']:.2f}x | {one['CPU']:.2f}x"
        for name, one in reward["ratios"].items()
    ]
    return _section(
        "Training beside TRL",
        "`benchmarks/train_step`: one train step of the example's model. Above 1 the other"
        " takes longer.",
        _table("beside | its time over Millrace's, median | lowest and highest", steps),
        "`benchmarks/time_to_reward`: until a held-out pass rate of "
        f"{reward['goal']['pass_rate']:.0%}, TRL's time over Millrace's. Below 1 TRL is there "
        "sooner: with a model so small, six services cost more than they overlap, and a "
        "reward without a sandbox costs nothing.",
        _table("TRL with its reward | wall time to the goal | with start-up | CPU time", goal),
    )


def _batches() -> str:
    results = _read("train_batch")
    arrays, tuples = results["arrays"], results["tuples"]
    lead, ranks = arrays["lead"], arrays["ranks"]
    bars = [f"{one['name']} | {one['bar']:g} | {one['found']:.2f}" for one in results["bars"]]
    return _section(
        "Batches to ranks",
        f"`benchmarks/train_batch.py`: {arrays['tokens'] / 1e6:.0f} M tokens for {len(ranks)} "
        "ranks, planned by the process that leads them, sent through Ray's object store and laid "
        f"out as tensors. The leading process took {lead['cpu_s']:.1f} CPU-seconds, a rank "
        f"{median(one['cpu_s'] for one in ranks):.1f}. The peer is the way before, tuples of "
        f"Python numbers, whole in every rank: {tuples['rank_cpu_ns_a_token']:.0f} CPU-ns and "
        f"{tuples['memory_bytes_a_token']:.0f} bytes a token in each, measured with "
        f"{tuples['tokens'] / 1e6:.1f} M tokens. To lay trajectories into arrays costs the "
        f"orchestrator {tuples['build_cpu_ns_a_token']:.0f} CPU-ns a token.",
        _table("bar, of the rank with most | wanted | found", bars),
    )


def _prefixes() -> str:
    results = _read("shared_prefix")
    titles = {
        "prompt_heavy": "a prompt of 8,192 tokens, 16 answers of 256",
        "agent": "4 episodes of 12 turns, thoughts forgotten",
        "answer_heavy": "4 prompts of 64 tokens, 16 answers of 512 to each",
    }
    rows = []
    for name, case in results["cases"].items():
        shares = f"{case['saved']:.1%} | {case['best']:.1%}"
        seconds = [f"{median(case['seconds']['cpu'][way]):.1f}" for way in ("rows", "tree")]
        ratio = f"{case['time']['cpu']:.2f}"
        rows.append(" | ".join([titles[name], f"{case['tokens']:,}", shares, *seconds, ratio]))
    bars = [f"{one['name']} | {one['bar']:g} | {one['found']:.2f}" for one in results["bars"]]
    return _section(
        "Shared prefixes",
        "`benchmarks/shared_prefix.py`: whole train steps of one rank on one core, with tokens "
        "that rows share computed once, beside the same steps row by row. At best each distinct "
        "beginning of a row is computed once. A random Qwen3 of two narrow layers, in which "
        "attention weighs more than in a large model. The saving on a GPU is not measured.",
        _table(
            "rows | tokens | not computed | at best | rows CPU s | tree CPU s | tree over rows",
            rows,
        ),
        _table("bar | wanted | found", bars),
    )


def _repeats() -> str:
    rounds = _read("determinism")["rounds"]
    names = {"sampling_s": "a batch is sampled, s", "step_s": "a step and its wait, s"}
    rows = []
    for key, says in names.items():
        without, repeats = (median(one[way][key] for one in rounds) for way in ("plain", "repeats"))
        times = median(one["repeats"][key] / one["plain"][key] for one in rounds)
        rows.append(f"{says} | {without:.2f} | {repeats:.2f} | {times:.2f}")
    ends = {json.dumps(one["repeats"]["digests"], sort_keys=True) for one in rounds}
    return _section(
        "Runs that repeat",
        "`benchmarks/determinism.py`: the example's run with `determinism: true` in both files "
        f"and without, in turn. With it {len(rounds)} runs ended with {len(ends)} distinct "
        f"checkpoint{'s' * (len(ends) > 1)}. Sampling costs more because an engine on a CPU then "
        "computes one sequence at a time, with one thread.",
        _table("medians | without | with | ratio", rows),
    )


def _schedules() -> str:
    cases = _read("schedules")["cases"]
    chosen = [one for one in cases if one["tail"] == "heavy" and one["share"] == 0.78]
    names = list(chosen[0]["schedules"])
    rows = []
    for one in chosen:
        base = one["schedules"]["sync, barrier"]["tokens_per_s"]
        speeds = (one["schedules"][name]["tokens_per_s"] / base for name in names)
        rows.append(" | ".join([f"{one['replicas']:,}", *(f"{speed:.2f}x" for speed in speeds)]))
    return _section(
        "Schedules",
        "`benchmarks/schedules/speed.py`: the real orchestrator in virtual time on a simulated "
        "cluster, answers of a heavy tail, grading 0.78 of the rollout. Trained tokens a "
        "second over `sync` with a barrier; the whole table and what is ideal: [How fast the "
        "schedules are](schedule-speed.md).",
        _table(" | ".join(["replicas", *names]), rows),
    )


def _soak() -> str:
    soak = _read("soak_weights")
    row = (
        f"{soak['seconds'] / 60:.0f} | {soak['pushes']:,} | {soak['commits']:,}"
        f" | {soak['requests']:,} | {soak['judged']:,} | {soak['gap']:.0e} nats"
        f" | {sum(soak['breaches'].values())}"
    )
    return _section(
        "Under faults",
        "`benchmarks/soak/weights.py`: a fault every 20 seconds in the midst of weight pushes.",
        _table(
            "minutes | pushes | commits | requests | judged by the canary | largest gap | breaches",
            [row],
        ),
    )


def _outside() -> str:
    if not _is_recorded("soak_outside"):
        return ""
    soak = _read("soak_outside")
    ledger, by_agents = soak["ledger"], soak["by_agents"]
    row = (
        f"{soak['seconds'] / 60:.0f} | {soak['sessions']:,} | {soak['steps']}"
        f" | {ledger['admitted']} | {ledger['trained']} | {ledger['filtered']}"
        f" | {ledger['failed']} | {len(soak['problems'])}"
    )
    ended = [f"{way} | {count:,}" for way, count in sorted(by_agents.items())]
    counted = [f"`{outcome}` | {count:,}" for outcome, count in sorted(soak["episodes"].items())]
    return _section(
        "Agents outside that do not end their sessions",
        "`benchmarks/soak/outside.py`: agents play sessions of a run over HTTP, and a tenth of"
        " them does not end its session as it should, in five ways. Late and bad rewards are"
        " refused and change nothing. What services keep up to a bound has a small bound here, and"
        " is full after two thirds of the sessions; from then on no process may grow.",
        _table(
            "minutes | sessions | train steps | groups | trained | filtered | failed | problems",
            [row],
        ),
        _table("what the agent does | sessions", ended),
        _table("how the run counted the episode | episodes", counted),
        _table(" | processes | memory, MiB | descriptors | threads", _held(soak)),
    )


def _held(soak: dict[str, Any]) -> list[str]:
    """What all processes held at the first and at the last look."""
    return [
        f"after {one['minute']:.0f} min | {one['processes']} | {one['rss_mib']:,.0f}"
        f" | {one['fds']:,} | {one['threads']:,}"
        for one in (soak["minutes"][0], soak["minutes"][-1])
    ]


def _whole_runs() -> str:
    soak = _read("soak_runs")
    faults = sum(run["totals"]["faults"] for run in soak["runs"])
    row = (
        f"{soak['seconds'] / 60:.0f} | {len(soak['runs'])} | {faults} | {soak['calls']:,}"
        f" | {soak['calls_retried']} | {soak['audits']:,} | {len(soak['problems'])}"
    )
    healed = [
        " | ".join([fault, str(max(map(len, times.values()))), *_healing(times)])
        for fault, times in sorted(soak["faults"].items())
    ]
    wrong = "".join(f"\n- {one}" for one in soak["problems"])
    return _section(
        "Whole runs under faults",
        "`benchmarks/soak/runs.py`: the example trained again and again while `millrace chaos`"
        " kills, freezes and slows its parts, outside clients ask and the ledger is audited."
        " Median and most of the seconds until things were as before.",
        _table("minutes | runs | faults | client calls | asked again | audits | problems", [row]),
        f"The problems:\n{wrong}" if wrong else "",
        _table(" | processes | memory, MiB | descriptors | threads", _held(soak)),
        _table("fault | times | leased again, s | next train step, s | next answer, s", healed),
    )


def _healing(times: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Median and most of the seconds, of each way in which a cluster is as before."""
    for way in ("leased_s", "stepped_s", "answered_s"):
        yield _both(times.get(way, ()))


def _highlights() -> str:
    """The figures of README: one of each section, each with what it was measured beside."""
    code = _read("reward_throughput")["medians"]["python"]
    unjailed = code["subprocess a test"]["tests_a_second_and_core"]
    push = next(
        one for one in _read("weight_push") if (one["size_mb"], one["replicas"]) == (150, 2)
    )
    ours, driver = _middle(push["idle"]["ours"]), _middle(push["idle"]["driver"])
    chat = _read("router_overhead")["medians"]["chat c64"]
    step = _read("train_step")["ratios"]["wall"]["trl"]["median"]
    rows = [
        f"sandboxed Python tests, one core | {code['millrace']['tests_a_second_and_core']:.0f}/s"
        f" | {unjailed:.0f}/s with an unsandboxed process for each test",
        f"{push['bytes'] / 1e6:.0f} MB of weights to 2 rollout servers | {_ms(ours)}"
        f" | {_ms(driver)} through the driver and the object store: {driver / ours:.1f}x",
        f"CPU time of a short chat, 64 at once | {chat['as shipped']['cpu_ms']:.1f} ms"
        f" | {chat['plain vLLM']['cpu_ms']:.1f} ms with vLLM alone",
        f"median latency of such a chat | {chat['as shipped']['latencies_p50_ms']:.0f} ms"
        f" | {chat['plain vLLM']['latencies_p50_ms']:.0f} ms with vLLM alone",
        f"train step, relative time | 1 | {step:.1f} with TRL's GRPO trainer",
    ]
    return _table("measure | value | baseline in the same run", rows)


def _section(title: str, *parts: str) -> str:
    texts = (text.strip() for text in parts if text)
    return "\n\n".join([f"## {title}", *texts]) + "\n"


def _table(head: str, rows: Sequence[str]) -> str:
    """Cells of a row are divided by ` | `; nothing where there is no row."""
    under = " | ".join(["---"] * len(head.split(" | ")))
    return "".join(f"| {line} |\n" for line in [head, under, *rows]) if rows else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
