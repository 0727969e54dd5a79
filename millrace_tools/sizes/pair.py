"""A deployment file and a run file that go together, as text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millrace_tools.capacity.sizing import Sizing
from millrace_tools.sizes.choice import Wish
from millrace_tools.sizes.text import replaced, with_figures, with_model
from services.trainer.config import LoraConfig

TRAINER = "    world_size: 4\n    ranks_per_node: 4  # on one node, and all of them at once\n"
MICRO_BATCH = "    micro_batch_tokens: 32768\n"
ROLLOUT = "    served_model_name: qwen3-4b\n    replicas: 4\n"
ENGINE = "    tensor_parallel_size: 1  # GPUs of an engine, on one node\n"
SLOTS = "    slots: 96  # sandboxes at a time, a core each\n"
SLOT_CPUS = "    num_cpus: 96  # reserved for them\n"
_MORE_REPLICAS = (
    "    # max_replicas: 6  # more while a run's trainer starves for rollouts, as far as there are "
    "GPUs\n"
)
_ADAPTER_HINT = (
    "    # lora: {rank: 32, alpha: 64, push: adapter}  # with rollout_server.lora_rank: 32\n"
)
_TIER = "    require_tier: A  # docs/deploying.md says how nodes and pods get it\n"
_SHARED = "    placement: shared  # ranks and engines use the same GPUs, in turn\n"
_GPUS = "    gpus_per_rank: 1\n"
_MODEL = "model: qwen3-4b  # served_model_name in deploy/cluster.yaml\n"
_LISTEN, _FRONT = "    listen: {port: 8000}\n", "    num_cpus: 2\n"
_EVALUATIONS = "    evaluation_concurrency: 256\n"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both files.

    Attributes:
        title: first line of both.
        name: of the deployment file, and
        run_name: of the run file, each from the folder in which commands are typed.
        tasks: the task file as the run file names it.
        run_root: likewise the folder of run directories.
        prepare: the command that writes the task file.
        made_by: what wrote them, for a comment.
    """

    title: str
    name: str
    run_name: str
    tasks: str
    run_root: str
    prepare: str
    made_by: str

    def deployment(self, base: Path, wish: Wish, sizing: Sizing) -> str:
        """The deployment file, from the one that explains the keys.

        Raises:
            InvalidInput: that is not the file of this version.
        """
        text = base.read_text(encoding="utf-8")
        body = text[text.index("proxy_location") :]
        (nodes,) = re.findall(r"^# Nodes: .*\n", text, re.MULTILINE)
        lines = dict(_deployment_lines(wish, sizing))
        body = with_model(replaced(body, lines, source=str(base)), wish.model)
        gib = f"{wish.hardware.gpu_gib:g}"
        head = (
            f"# {self.title}\n"
            f"#   millrace check {self.name} --figures --gpu-gib {gib}   # the arithmetic below\n"
            f"# Made by {self.made_by} from {base.name}, which explains the keys.\n"
            f"{nodes}#\n"
            f"# For {wish.model.rpartition('/')[2]} and {self.run_name}:\n"
        )
        return with_figures(head + body, sizing)

    def run(self, base: Path, wish: Wish, sizing: Sizing) -> str:
        """The run file, from that of the example.

        Raises:
            InvalidInput: that is not the file of this version.
        """
        run = sizing.run
        assert run is not None
        body = base.read_text(encoding="utf-8").partition("\n")[2]
        ours, algorithm = wish.run, run.algorithm
        slots = run.schedule.groups_in_flight(run.batch_groups) * run.group_size
        batch = (
            f"batch_groups: {run.batch_groups}  # x {run.group_size} answers; {slots:,} in flight, "
            f"{sizing.sequences:,} generated at a time\n"
        )
        lines = {
            "task_file: tasks.jsonl\n": f"task_file: {self.tasks}\n",
            "run_root: ../../runs\n": f"run_root: {self.run_root}\n",
            _MODEL: f"model: {run.model}\n",
            f"batch_groups: {ours.batch_groups}\n": batch,
            f"max_tokens: {ours.sampling.max_tokens}\n": (
                f"max_tokens: {run.sampling.max_tokens}  # the engines take "
                f"{sizing.rollout.max_model_len:,} with the prompt\n"
            ),
        }
        if run.schedule != ours.schedule:
            had = f"schedule:\n  preset: {ours.schedule.preset}\n"
            had += "  max_staleness: 2\n" if ours.schedule.preset == "async" else ""
            lines[had] = "schedule:\n  preset: sync  # a batch is sampled, then trained, in turn\n"
        if algorithm.learning_rate != ours.algorithm.learning_rate:
            had = f"learning_rate: {ours.algorithm.learning_rate:.1e}\n".replace("e-06", "e-6")
            rate = f"{algorithm.learning_rate:.1e}".replace("e-05", "e-5")
            lines[had] = f"learning_rate: {rate}  # an adapter takes ten times the model's\n"
        head = (
            f"# {self.title}\n"
            f"#   {self.prepare}   # once: writes the tasks\n"
            f"#   millrace run {self.run_name} --dry-run --deployment {self.name}\n"
            f"# Made by {self.made_by} from examples/{base.parent.name}/run.yaml.\n"
        )
        return head + replaced(body, lines, source=str(base))


def adapter_line(lora: LoraConfig) -> str:
    """The adapter in the trainer's arguments."""
    return f"    lora: {{rank: {lora.rank}, alpha: {lora.alpha:g}, push: {lora.push}}}\n"


def _deployment_lines(wish: Wish, sizing: Sizing) -> Iterator[tuple[str, str]]:
    """Lines of deploy/cluster.yaml, and those in their place."""
    trainer, rollout, reward = sizing.trainer, sizing.rollout, sizing.reward
    yield TRAINER, "".join(_trainer_lines(sizing))
    yield MICRO_BATCH, "".join(_pass_lines(sizing))
    yield "    rank_num_cpus: 4\n", f"    rank_num_cpus: {trainer.rank_num_cpus:g}\n"
    yield _ADAPTER_HINT, ""
    yield ROLLOUT, "".join(_rollout_lines(sizing))
    yield ENGINE, ENGINE.replace("1", str(rollout.tensor_parallel_size), 1)
    share = f"    gpu_memory_utilization: {rollout.gpu_memory_utilization:g}\n"
    yield "    gpu_memory_utilization: 0.9\n", share
    yield "    max_model_len: 32768\n", f"    max_model_len: {rollout.max_model_len}\n"
    yield "    max_num_seqs: 256\n", f"    max_num_seqs: {rollout.max_num_seqs}\n"
    yield "    num_cpus: 4\n", f"    num_cpus: {rollout.num_cpus:g}\n"
    yield SLOTS, SLOTS.replace("96", str(reward.slots), 1)
    yield SLOT_CPUS, SLOT_CPUS.replace("96", f"{reward.num_cpus:g}", 1)
    cores = wish.hardware.divided(ranks=trainer.world_size, engines=rollout.replicas)
    front = f"    num_cpus: {cores.front}\n"
    yield _LISTEN + _FRONT, _LISTEN + front
    yield _EVALUATIONS + _FRONT, _EVALUATIONS + front
    if reward.require_tier == "B":
        yield (
            _TIER,
            "    require_tier: B  # content with ordinary containers; A where it can be had\n",
        )
    if sizing.shared_gpu is not None:
        yield _GPUS, "    gpus_per_rank: 0  # the engines hold them\n"
        yield _MORE_REPLICAS, ""


def _trainer_lines(sizing: Sizing) -> Iterator[str]:
    trainer = sizing.trainer
    yield f"    world_size: {trainer.world_size}\n"
    if trainer.ranks_per_node is not None:
        yield f"    ranks_per_node: {trainer.ranks_per_node}  # on one node, and all at once\n"
    if trainer.placement == "shared":
        yield _SHARED
    if trainer.kept_on_gpu != "none":
        yield f"    kept_on_gpu: {trainer.kept_on_gpu}  # while the engines sample\n"
    if trainer.offload != "none":
        yield f"    offload: {trainer.offload}\n"
    if trainer.lora is not None:
        yield adapter_line(trainer.lora)


def _pass_lines(sizing: Sizing) -> Iterator[str]:
    trainer = sizing.trainer
    yield f"    micro_batch_tokens: {trainer.micro_batch_tokens}\n"
    if trainer.context_parallel > 1:
        yield f"    context_parallel: {trainer.context_parallel}\n"
    if trainer.activation_offload:
        yield "    activation_offload: true\n"


def _rollout_lines(sizing: Sizing) -> Iterator[str]:
    rollout = sizing.rollout
    yield f"    served_model_name: {rollout.served_model_name}\n    replicas: {rollout.replicas}\n"
    if rollout.lora_rank is not None:
        yield f"    lora_rank: {rollout.lora_rank}\n"
    if rollout.placement == "shared":
        yield _SHARED
    if rollout.kept_on_gpu != "none":
        yield f"    kept_on_gpu: {rollout.kept_on_gpu}  # while the ranks train\n"
