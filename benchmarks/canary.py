"""What canary and read-back find, and whether they raise an alarm where all is well, in bfloat16.

    python -m benchmarks.canary [--pushes 2000] [--json]

A trainer rank and a vLLM engine, both real and in bfloat16, and small models that were taught a
random language first. The rank trains on what the engine samples; after every step the engine
loads the new weights, reads them back and scores the canary, as a rollout server does, and the
weight bus's own code judges the answer. Every so often the engine also loads the weights with one
fault, reads back those without it, and the answer is judged beside the good ones. One fault is a
load that leaves something as it was when training began.
"""

import copy
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions go to the engine's process
    "VLLM_CPU_KVCACHE_SPACE": "1",
}

import torch

from benchmarks.models import make_model
from benchmarks.random_batch import RUN, run_start, scored
from benchmarks.report import Bar, machine, options_of, show, write
from benchmarks.snapshot_tensors import snapshot_tensors
from services.protocol.train_batch import BatchBuilder, TrainBatch, TrainGroup
from services.protocol.weights.weights import CanaryLogprobs, Dtype, TensorSpec, WeightManifest
from services.transport.version_bytes import VersionBytes, block_bytes
from services.weight_bus.delivery.canary_gaps import Gaps, GoodGaps

VOCABULARY = 258
SHAPE = (64, 192, 2, 2, 1, 32)
TAUGHT, EVERY = 400, 25
GROUPS, SIZE, PROMPT, ANSWER = 4, 8, 4, 24
STEPS_A_SAMPLE = 8
LEARNING_RATE = 3e-5
OTHER_PUSHES = 400
"""To the models that a single fault is about."""

Tensors = dict[str, torch.Tensor]
Fault = Callable[[Tensors, Tensors], Tensors]
"""Makes what the engine is left with, from the newest weights and those of the start."""

ATTENTION, MLP = "model.layers.{}.self_attn.{}_proj.weight", "model.layers.{}.mlp.{}_proj.weight"


def stale(*parts: str) -> Fault:
    """Tensors whose names have one of these parts stay as they were."""

    def left(new: Tensors, first: Tensors) -> Tensors:
        found = {name for name in new if any(part in name for part in parts)}
        assert found, parts
        return new | {name: first[name] for name in found}

    return left


def swapped(name: str, one: int, other: int) -> Fault:
    """Two rows of a tensor in each other's place."""

    def swap(new: Tensors, first: Tensors) -> Tensors:
        rows = torch.arange(len(new[name]))
        rows[one], rows[other] = other, one
        return new | {name: new[name][rows]}

    return swap


def scaled(name: str) -> Fault:
    """A tensor that is off by 1 %."""
    return lambda new, first: new | {name: new[name] * 1.01}


DENSE: Mapping[str, Fault] = {
    "one tensor of one layer stale: query": stale(ATTENTION.format(0, "q")),
    "one tensor of one layer stale: value": stale(ATTENTION.format(1, "v")),
    "one tensor of one layer stale: down": stale(MLP.format(1, "down")),
    "one layer stale": stale("model.layers.1."),
    "two rows swapped: query": swapped(ATTENTION.format(0, "q"), 3, 40),
    "two rows swapped: output": swapped(ATTENTION.format(1, "o"), 5, 33),
    "two rows swapped: gate": swapped(MLP.format(1, "gate"), 5, 100),
    "a scale off by 1 %: last norm": scaled("model.norm.weight"),
    "a scale off by 1 %: head": scaled("lm_head.weight"),
    "a scale off by 1 %: output": scaled(ATTENTION.format(0, "o")),
    "a scale off by 1 %: down": scaled(MLP.format(1, "down")),
    "an adapter left out": stale("self_attn", "mlp"),
}
UNPACKED = "the tied head not repacked"
TIED: Mapping[str, Fault] = {UNPACKED: lambda new, first: new}
MIXTURE: Mapping[str, Fault] = {
    "one expert stale": stale("layers.1.mlp.experts.0."),
    "all experts of a layer stale": stale("layers.1.mlp.experts."),
}
CASES: Mapping[str, tuple[Mapping[str, Fault], dict[str, Any]]] = {
    "dense": (DENSE, {}),
    "tied": (TIED, {"tied": True}),
    "mixture": (MIXTURE, {"experts": (4, 2)}),
    "dense, fp8 engine": (DENSE, {}),
}
QUANTISED = "dense, fp8 engine"


class Trainer:
    """One rank, and the tensors of its newest snapshot."""

    def __init__(self, model: Path, folder: Path) -> None:
        from services.trainer.config import TrainerConfig
        from services.trainer.rank.learner import Learner
        from services.trainer.rank.process_group import join_group, open_store

        config = TrainerConfig(model=str(model), world_size=1, dtype="bfloat16")
        join_group(config, 0, open_store("127.0.0.1"), "127.0.0.1")
        self._learner = Learner(config)
        self._start = run_start(folder, learning_rate=LEARNING_RATE)
        self.canary = self._learner.start_run(self._start, 0).canary

    def train(self, batch: TrainBatch) -> None:
        """One step, with a snapshot."""
        part = self._learner.model.plan(batch, self._start).part(0)
        self._learner.train(part, batch.step - 1, batch.step)

    def tensors(self, version: int) -> Tensors:
        """As they travel."""
        return snapshot_tensors(self._learner, version)

    def scores(self) -> CanaryLogprobs:
        """Of the canary, under the newest weights."""
        by_index = self._learner.logprobs([list(one) for one in self.canary])
        return tuple(tuple(by_index[index]) for index in range(len(self.canary)))


class Engine:
    """A vLLM engine in a process of its own, loaded as a rollout server loads its engine."""

    def __init__(self, model: Path, quantization: str | None) -> None:
        from vllm import LLM

        self._file = model.parent / "weights.pt"
        self._engine = LLM(
            str(model),
            dtype="bfloat16",
            quantization=quantization,
            enforce_eager=True,
            max_model_len=256,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    def close(self) -> None:
        """End the engine's processes."""
        self._engine.llm_engine.engine_core.shutdown()

    def load(self, tensors: Tensors, sent: Tensors | None = None, *, repack: bool = True) -> bool:
        """What a commit does; whether it reads back what was sent, if that is something else."""
        torch.save((tensors, sent or tensors), self._file)
        (is_as_sent,) = self._engine.collective_rpc(load_into, args=(str(self._file), repack))
        return bool(is_as_sent)

    def scores(self, sequences: tuple[tuple[int, ...], ...]) -> CanaryLogprobs:
        """Of the canary, as a rollout server asks for them."""
        answers = self._generate(sequences, max_tokens=1, prompt_logprobs=0)
        return tuple(
            tuple(one[t].logprob for t, one in zip(s[1:], a.prompt_logprobs[1:], strict=True))
            for s, a in zip(sequences, answers, strict=True)
        )

    def sample(self, seed: int) -> list[tuple[list[int], list[int], float]]:
        """Prompts, answers, and the mean logprob of an answer's tokens."""
        draw = random.Random(seed)
        prompts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(GROUPS)]
        asked = [tuple(prompt) for prompt in prompts for _ in range(SIZE)]
        answers = self._generate(asked, max_tokens=ANSWER, logprobs=0, ignore_eos=True, seed=None)
        return [
            (list(prompt), list(a.outputs[0].token_ids), a.outputs[0].cumulative_logprob / ANSWER)
            for prompt, a in zip(asked, answers, strict=True)
        ]

    def _generate(self, sequences: Any, **parameters: Any) -> Any:
        from vllm import SamplingParams

        prompts: Any = [{"prompt_token_ids": list(one)} for one in sequences]
        settings = SamplingParams(temperature=1.0, detokenize=False, **parameters)
        return self._engine.generate(prompts, settings, use_tqdm=False)


def load_into(worker: Any, file: str, repack: bool) -> bool:
    """In the engine's process; whether the second tensors of the file are read back."""
    import torch

    from services.rollout_server.engine.vllm_patches.loading import layerwise_load, load_plan
    from services.rollout_server.weights.read_back import ReadBack

    loaded, sent = map(version_of, torch.load(file))
    kept = layerwise_load._repack_tied_head
    if not repack:
        layerwise_load._repack_tied_head = lambda model: None
    runner, loads = worker.model_runner, getattr(worker, "loads", 0)
    plan = getattr(worker, "plan", None)
    try:
        plan = load_plan.load(runner.get_model(), runner.model_config, loaded, plan)
    finally:
        layerwise_load._repack_tied_head = kept
    worker.plan, worker.loads = plan, loads + 1
    return ReadBack().check(plan.traced, sent.block, loads) is None


def version_of(tensors: Tensors) -> VersionBytes:
    """Tensors as they lie in a node's memory."""
    specs = tuple(
        TensorSpec(
            name=name,
            dtype=Dtype(str(one.dtype).removeprefix("torch.")),
            shape=tuple(one.shape),
            shard_numels=(one.numel(),),
        )
        for name, one in tensors.items()
    )
    layout = SimpleNamespace(tensors=specs, buckets=())
    version = VersionBytes(layout, torch.empty(block_bytes(layout), dtype=torch.uint8))
    for name, memory in version.named_tensors():
        memory.copy_(tensors[name])
    return version


def taught(folder: Path, **options: Any) -> Path:
    """A model of a language in which each token limits the second one after it to four."""
    from transformers import AutoModelForCausalLM

    make_model(folder, SHAPE, vocabulary=VOCABULARY, **options)
    torch.manual_seed(0)
    follow = torch.randint(0, VOCABULARY, (VOCABULARY, 4))
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(TAUGHT):
        text = torch.randint(0, VOCABULARY, (16, 2))
        for _ in range(30):
            chosen = torch.randint(0, 4, (16,)) * torch.randint(0, 2, (16,))
            text = torch.cat([text, follow[text[:, -2], chosen][:, None]], 1)
        optimizer.zero_grad()
        model(text, labels=text).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def batches(engine: Engine) -> Iterator[TrainBatch]:
    """What the engine sampled, paid for even tokens."""
    for step in itertools.count(1):
        if step % STEPS_A_SAMPLE == 1:
            sampled = engine.sample(step)
        builder = BatchBuilder(run_id=RUN, step=step)
        for group in range(GROUPS):
            members = [
                scored(
                    prompt,
                    answer,
                    sum(token % 2 == 0 for token in answer) / ANSWER,
                    logprob=logprob,
                    version=step - 1,
                )
                for prompt, answer, logprob in sampled[group * SIZE : (group + 1) * SIZE]
            ]
            builder.add(TrainGroup(group_id=group, trajectories=tuple(members)))
        yield builder.batch()


def run(case: str, pushes: int, folder: Path) -> dict[str, Any]:
    """Pushes to one model: alarms of good ones, and how many of each fault were found."""
    faults, options = CASES[case]
    model = taught(folder / "model", **options)
    quantised = case == QUANTISED
    engine = Engine(model, "fp8_per_channel" if quantised else None)
    trainer = Trainer(model, folder)
    first = trainer.tensors(0)
    good = GoodGaps(None)
    spec = TensorSpec(name="w", dtype=Dtype.BFLOAT16, shape=(1,), shard_numels=(1,))
    manifest = WeightManifest(
        version=0,
        train_step=0,
        tensors=(spec,),
        buckets=((0, 1),),
        digests=(("",),),
        canary=trainer.canary,
    )
    found: dict[str, list[bool]] = {name: [] for name in faults}
    read_back: dict[str, list[bool]] = {name: [] for name in faults}
    alarms, means, largest = [], [], []
    for batch in itertools.islice(batches(engine), pushes):
        trainer.train(batch)
        new, expected = trainer.tensors(batch.step), trainer.scores()
        if batch.step % EVERY == 0 and batch.step >= pushes // 4:
            for name, fault in faults.items():
                if name == UNPACKED:
                    engine.load(first)  # which the head then keeps
                is_as_sent = engine.load(fault(new, first), new, repack=name != UNPACKED)
                read_back[name].append(not is_as_sent)
                gaps = Gaps.between(engine.scores(trainer.canary), expected)
                judged = copy.deepcopy(good).judge("r", gaps, manifest, quantised=quantised)
                found[name].append(judged is not None)
        if not engine.load(new):
            alarms.append(f"push {batch.step}: it is not read back")
        gaps = Gaps.between(engine.scores(trainer.canary), expected)
        means.append(gaps.mean)
        largest.append(gaps.largest)
        problem = good.judge("r", gaps, manifest, quantised=quantised)
        if problem is not None:
            alarms.append(f"push {batch.step}: {problem}")
        if batch.step % 100 == 0:
            print(f"{case}: {batch.step} pushes, {len(alarms)} alarms", file=sys.stderr, flush=True)
    engine.close()
    return {
        "pushes": pushes,
        "tokens": sum(len(one) - 1 for one in trainer.canary),
        "alarms": alarms,
        "mean_gap": [min(means), sorted(means)[len(means) // 2], max(means)],
        "largest_gap": max(largest),
        "faults": {name: [sum(of), len(of)] for name, of in found.items()},
        "read_back": {name: [sum(of), len(of)] for name, of in read_back.items()},
    }


def main() -> None:
    """Measure, and print what was found."""
    pushes = (2000, "good pushes to the dense model")
    parser = options_of(__doc__, "canary", pushes=pushes, one="")
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            figures = run(options.one, options.pushes, Path(folder))
        write(options.json, figures)
        sys.stdout.flush()
        os._exit(0)  # nothing is left to write, and vLLM's libraries complain at length
    found = {case: _alone(case, options.pushes) for case in CASES}
    rows = [
        [case, name, f"{hits} of {tries}", f"{one['read_back'][name][0]} of {tries}"]
        for case, one in found.items()
        for name, (hits, tries) in one["faults"].items()
    ]
    show(("model", "fault", "by the canary", "by reading back"), rows)
    for case, one in found.items():
        low, middle, high = one["mean_gap"]
        print(
            f"{case}: {one['pushes']} good pushes, {one['tokens']} tokens, mean gap {low:.2g} to "
            f"{high:.2g}, median {middle:.2g}, largest of a token {one['largest_gap']:.2g} nats"
        )
        print(Bar(name=f"{case}: alarms", found=len(one["alarms"]), limit=0, at_most=True))
    write(options.json, machine() | found)


def _alone(case: str, pushes: int) -> Any:
    """In a process of its own, for a process has one group of ranks."""
    pushes = pushes if case == "dense" else min(pushes, OTHER_PUSHES)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.canary", "--one", case]
        subprocess.run([*command, "--pushes", str(pushes), "--json", str(file)], check=True)
        return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
