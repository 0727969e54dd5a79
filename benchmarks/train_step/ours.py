"""Train steps of one rank of Millrace, and the bare passes that they are measured against."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn import functional
from transformers import AutoModelForCausalLM

from benchmarks.random_batch import RUN, run_start, scored
from benchmarks.report import options_of
from benchmarks.train_step.batch import GROUP_SIZE, VOCABULARY, Answer, Watch, answer_calls, read
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import BatchBuilder, TrainBatch, TrainGroup
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.collate import MicroBatch, collate
from services.trainer.batch.step_plan import plan_step
from services.trainer.config import MIB, TrainerConfig
from services.trainer.model.packed_attention import PACKED, packed_hidden, padded_hidden
from services.trainer.model.token_logprobs import Logits, token_logprobs
from services.trainer.rank.learner import Learner
from services.trainer.rank.process_group import join_group, open_store

TRUE_LOGPROB = -math.log(VOCABULARY)  # a random model's: the clip is hardly ever reached


class Steps:
    """Whole train steps as a rank does them: plan, passes, update, diagnostics, snapshot."""

    def __init__(
        self,
        folder: Path,
        answers: list[Answer],
        config: TrainerConfig,
        rank: int = 0,
        store: TCPStore | None = None,
    ) -> None:
        join_group(config, rank, store or open_store("127.0.0.1"), "127.0.0.1")
        self._learner = Learner(config)
        self._folder, self._groups, self._step = folder, groups_of(answers), 0

    def start(self, **algorithm: Any) -> None:
        """Begin a run under an algorithm; the next steps are its first ones."""
        self._step = 0
        self._run = run_start(self._folder, learning_rate=1e-6, **algorithm)
        self._learner.start_run(self._run, 0)

    def take(self) -> dict[str, float]:
        """Seconds of one train step."""
        self._step += 1
        batch = batch_of(self._step, self._groups)
        watch = Watch()
        part = self._learner.model.plan(batch, self._run).part(0)
        self._learner.train(part, self._step - 1, self._step)
        return watch.read()


def groups_of(answers: list[Answer]) -> tuple[TrainGroup, ...]:
    """The answers as sample groups."""
    members = [
        scored(one.prompt, one.response, one.reward, logprob=TRUE_LOGPROB) for one in answers
    ]
    return tuple(
        TrainGroup(group_id=start, trajectories=tuple(members[start : start + GROUP_SIZE]))
        for start in range(0, len(members), GROUP_SIZE)
    )


def batch_of(step: int, groups: tuple[TrainGroup, ...]) -> TrainBatch:
    """The groups as the batch of a step."""
    builder = BatchBuilder(run_id=RUN, step=step)
    for group in groups:
        builder.add(group)
    return builder.batch()


class Bare:
    """Nothing but forward and backward of the same tokens by transformers and torch.

    No FSDP, no loss but the mean logprob of the trained tokens, no diagnostics, no optimizer,
    and micro-batches that were laid out before the clock starts.
    """

    def __init__(self, folder: Path, answers: list[Answer], config: TrainerConfig) -> None:
        self._config = config
        self._causal: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._batch = batch_of(1, groups_of(answers))
        self._padded, self._packed = self._layout(padded=True), self._layout(padded=False)

    def _layout(self, *, padded: bool) -> list[MicroBatch]:
        limits = PassLimits(world_size=1, max_tokens=self._config.micro_batch_tokens, padded=padded)
        plan = plan_step(
            self._batch, AlgorithmConfig(), seed="", limits=limits, vocabulary=VOCABULARY
        )
        (micros,) = plan.part(0).micro_batches()
        return [collate(rows, 0) for rows in micros]

    def pass_over(self, *, packed: bool, backward: bool = True) -> dict[str, float]:
        """Seconds of a forward pass over all rows, and of the backward one."""
        hidden = packed_hidden if packed else padded_hidden
        self._causal.set_attn_implementation(PACKED if packed else "sdpa")
        watch = Watch()
        with torch.set_grad_enabled(backward):
            for micro in self._packed if packed else self._padded:
                states = hidden(self._causal, micro.input_ids, micro.rows)[micro.position]
                logits = self._causal.get_output_embeddings()(states)
                loss = functional.cross_entropy(logits, micro.target)
                if backward:
                    loss.backward()
        seconds = watch.read()
        self._causal.zero_grad()
        return seconds


def peak_memory(vocabulary: int = 32768, hidden: int = 256, tokens: int = 2048) -> dict[str, float]:
    """MiB that scoring takes at its peak, forward and backward, above what it is given."""
    head = torch.nn.Linear(hidden, vocabulary, bias=False)
    states = torch.randn(tokens, hidden, requires_grad=True)
    target = torch.randint(vocabulary, (tokens,))

    def plain() -> None:
        logs = head(states).log_softmax(-1)
        entropy = -(logs.detach().exp() * logs.detach()).sum(-1)
        (logs.gather(-1, target[:, None]).sum() + 0 * entropy.sum()).backward()

    def ours(limit: int) -> None:
        logprobs, _ = token_logprobs(states, head, target, Logits(max_bytes=limit), entropy="value")
        logprobs.sum().backward()

    ways: dict[str, Callable[[], None]] = {
        "plain": plain,
        "in one piece": lambda: ours(4 * vocabulary * tokens),
        "logits_mb: 32": lambda: ours(32 * MIB),
        "logits_mb: 8": lambda: ours(8 * MIB),
    }
    return {name: _peak(way) for name, way in ways.items()}


def _peak(way: Callable[[], None]) -> float:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        way()
    held = peak = 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / MIB


def main() -> None:
    """Do one thing for every line on stdin."""
    parser = options_of("One rank of Millrace", threads=1, offload="none")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    answers = read(options.folder)
    config = TrainerConfig(
        model=str(options.folder),
        world_size=1,
        threads_per_rank=options.threads,
        offload=options.offload,
        canary_sequences=0,
    )
    steps, bare = Steps(options.folder, answers, config), Bare(options.folder, answers, config)

    answer_calls(
        {
            "begin behaviour": steps.start,
            "begin proximal": lambda: steps.start(ratio_anchor="proximal", minibatches=2),
            "step": steps.take,
            "bare": lambda: bare.pass_over(packed=True),
            "bare padded": lambda: bare.pass_over(packed=False),
            "bare forward": lambda: bare.pass_over(packed=True, backward=False),
            "memory": peak_memory,
        }
    )


if __name__ == "__main__":
    main()
