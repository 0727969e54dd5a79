"""The torch side of one rank: model, optimizer, run. One thread uses it, in step with its peers."""

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.trainer import CheckpointReport, LedgerFrontier, RunStart
from services.protocol.weights.weights import Dtype
from services.trainer.algorithms.losses.user_loss import UserLoss, load_user_loss
from services.trainer.batch.batching import PassLimits, plan_microbatches
from services.trainer.batch.collate import collate_sequences
from services.trainer.batch.longest_row import longest_row
from services.trainer.batch.rank_batch import RankBatch
from services.trainer.checkpoints.checkpoint import Part, Parts, load_newest
from services.trainer.checkpoints.folder import CheckpointFolder, GoodCheckpoint
from services.trainer.checkpoints.frozen_base import identify_base, refuse_other_base
from services.trainer.checkpoints.manifest import CheckpointManifest, Progress
from services.trainer.checkpoints.writer import CheckpointWriter
from services.trainer.config import TrainerConfig
from services.trainer.heartbeat import HEARTBEAT
from services.trainer.model.attention_share import attention_share
from services.trainer.model.context_parallel import ContextGroup
from services.trainer.model.model import Policy, load_initial_weights, load_policy
from services.trainer.offload.parking import Parking
from services.trainer.rank.memory_limits import check_memory
from services.trainer.rank.process_group import make_mesh
from services.trainer.rank.rank_messages import Digests, RankModel, RankRun, RankStep
from services.trainer.snapshot.canary_sequences import canary_sequences
from services.trainer.snapshot.exporter import WeightExporter
from services.trainer.step.auxiliary_models import AuxiliaryModels
from services.trainer.step.balance import check_balance
from services.trainer.step.model_flops import peak_flops
from services.trainer.step.muon import refuse_muon
from services.trainer.step.profiler import StepProfiler
from services.trainer.step.step import TrainStep
from services.trainer.step.update import eight_bit_adamw, make_optimizer


class Learner:
    """Holds one rank's shards and carries out what the trainer asks of all ranks.

    Every method is collective: all ranks call it with the same arguments, but for each one's
    part of a batch, and an
    `InvalidInput` is raised by all of them before the first collective.

    Attributes:
        gpu: this rank's; None on CPUs.
    """

    def __init__(self, config: TrainerConfig) -> None:
        if config.moments == "8bit":
            eight_bit_adamw("trainer.moments")  # before the model is loaded
        self._config = config
        self._device = torch.device(config.device)
        # The current device is the calling thread's, torch's here.
        on_gpu = config.device == "cuda"
        self.gpu = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
        self._mesh = make_mesh(config)
        check_memory(config, AlgorithmConfig())
        self._context_group = ContextGroup.make(config)
        self._policy = load_policy(config, self._mesh, Policy, self._context_group)
        self._touched = False
        self._limits = PassLimits(
            world_size=config.row_groups,
            max_tokens=config.micro_batch_tokens,
            padded=not self._policy.packs,
            attention=attention_share(self._policy.causal),
            shares=self._policy.shares,
            longest_row=longest_row(self._policy.causal.config.get_text_config()),
        )
        self._base = identify_base(config)
        self._exporter = WeightExporter(self._policy, config, self._base)
        self.snapshots = self._exporter.snapshots
        self._canary = self._likely_sequences()
        self._start: RunStart | None = None
        self._algorithm = AlgorithmConfig()
        self._user_loss: UserLoss | None = None
        self._auxiliary_models = AuxiliaryModels()
        self._optimizer = self._make_optimizer()
        self._progress = Progress()
        self._checkpoints = CheckpointWriter()
        self._parking = Parking(self._device)
        self._profiler = StepProfiler(config.device)
        self.profile = self._profiler.ask

    @property
    def model(self) -> RankModel:
        """What was loaded."""
        return RankModel(
            parameters=sum(one.numel() for one in self._policy.parameters()),
            tensors=self._exporter.layout.tensors,
            buckets=self._exporter.layout.buckets,
            canary=self._canary,
            adapter=self._exporter.adapter,
            vocabulary=self._policy.vocabulary,
            limits=self._limits,
            peak_flops=peak_flops(self._config),
        )

    def snapshot(self, version: int) -> Digests:
        """Copy the weights as they are under the name `version`, where they will be sent."""
        return self._exporter.snapshot(self._policy, version)

    def start_run(self, start: RunStart, version: int) -> RankRun:
        """Load the newest good checkpoint, else that of the run which this one branches off, else
        the initial weights, and take a snapshot.

        Raises:
            InvalidInput: the user's own loss cannot be used, the optimizer does not go with the
                trainer's settings, or there are checkpoints and none is good.
        """
        torch.use_deterministic_algorithms(start.determinism)
        self._user_loss = load_user_loss(start.algorithm, allowed=self._config.user_losses)
        if start.algorithm.optimizer == "muon":
            refuse_muon(self._config)
        check_memory(self._config, start.algorithm)
        check_balance(self._policy, start.algorithm.router_aux_loss_coef)
        self._profiler.drop()
        self._exporter.let_weights_change()
        self._start, self._algorithm = start, start.algorithm
        self._auxiliary_models = AuxiliaryModels()  # frees those of the run before
        self._auxiliary_models = AuxiliaryModels.load(
            self._algorithm, self._config, self._mesh, self._context_group
        )
        torch.manual_seed(start.seed)
        self._checkpoints.settle()
        as_loaded = not self._touched and not start.origin
        loaded = self._load(start.checkpoint_dir, self._fresh_parts)
        if loaded is None:
            self._begin(start)
        self._progress = loaded.manifest.progress if loaded else Progress()
        self._checkpoints.follow(self._progress.step)
        if loaded or not as_loaded:
            self._canary = self._likely_sequences()
        return RankRun(
            step=self._progress.step,
            digests=self.snapshot(version),
            canary=self._canary,
            frontier=loaded.manifest.frontier if loaded else None,
            refused=loaded.refused if loaded else (),
        )

    def train(self, batch: RankBatch, held_version: int, next_version: int) -> RankStep:
        """Do one train step on this rank's part and take a snapshot named `next_version`."""
        start = self._started()
        self._profiler.before_step()
        self._touched = True
        step = TrainStep(
            self._policy,
            self._optimizer,
            start,
            self._device,
            user_loss=self._user_loss,
            auxiliary_models=self._auxiliary_models,
        )
        done = step.run(batch, held_version, self._progress.optimizer_steps)
        began = time.perf_counter()
        HEARTBEAT.enter("snapshot")
        self._auxiliary_models.follow(batch.step, self._policy)
        digests = self.snapshot(next_version)
        self._progress = Progress(
            step=batch.step,
            optimizer_steps=self._progress.optimizer_steps + done.optimizer_steps,
            policy_version=next_version,
        )
        seconds = done.seconds | {"snapshot": time.perf_counter() - began}
        self._profiler.after_step(batch.step, seconds)
        return RankStep(
            step=batch.step,
            policy_version=next_version,
            tokens=done.tokens,
            metrics=done.metrics,
            seconds=seconds,
            skipped_groups=done.skipped_groups,
            checkpoint=self._checkpoints.report(),
            details=done.details,
            digests=digests,
            flops=done.flops,
        )

    def save(
        self, version: int, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        """Begin a checkpoint of the current step, and `wait` until it is on disk."""
        start = self._started()
        self._progress = self._progress.model_copy(update={"policy_version": version})
        manifest = CheckpointManifest(
            run_id=start.run_id,
            progress=self._progress,
            frontier=frontier,
            world_size=dist.get_world_size(),
            model=self._config.model,
            dtype=Dtype(self._config.dtype),
            moments=self._config.moments,
            lora=self._config.lora,
            base=self._base,
        )
        folder = CheckpointFolder(start.checkpoint_dir)
        kept = self._config.checkpoints_kept
        self._policy.reshard_all()
        self._auxiliary_models.reshard_all()
        self._checkpoints.begin(folder, self._parts(), manifest, kept=kept)
        if wait:
            self._checkpoints.settle()
        return self._checkpoints.report()

    def park(self) -> int:
        """Free the device for an engine that shares it; returns the bytes that wait elsewhere.

        Until `unpark` no other method may be called.
        """
        for model in (self._policy, *self._auxiliary_models.models):
            model.reshard_all()
        self._exporter.let_weights_change()  # what is being copied must not go
        return self._parking.park(self._movable())

    def unpark(self) -> None:
        """Take the device back."""
        self._parking.unpark()

    def _movable(self) -> Iterator[Tensor]:
        """What `trainer.kept_on_gpu` does not keep on the device."""
        kept = self._config.kept_on_gpu
        if kept == "all":
            return
        critic = self._auxiliary_models.critic
        for optimizer in (self._optimizer, critic.optimizer if critic else None):
            for state in optimizer.state.values() if optimizer else ():
                yield from (one for one in state.values() if isinstance(one, Tensor))
        if kept == "none":
            for model in (self._policy, *self._auxiliary_models.models):
                yield from model.parameters()

    def logprobs(self, sequences: list[list[int]]) -> dict[int, list[float]]:
        """Score the share of this rank's group of the sequences, at temperature 1; by index."""
        for index, sequence in enumerate(sequences):
            if not sequence:
                raise InvalidInput(f"sequences[{index}]", sequence, "It needs a token.")
            self._check_ids(f"sequences[{index}]", sequence)
        plan = plan_microbatches([len(sequence) for sequence in sequences], self._limits)
        scored: dict[int, list[float]] = {}
        with torch.no_grad():
            for chosen in plan[self._context_group.index]:
                micro = collate_sequences([sequences[i] for i in chosen]).to(self._device)
                flat, _ = self._policy(micro, 1.0)
                lengths = [len(sequences[i]) - 1 for i in chosen]
                for index, values in zip(chosen, flat[: sum(lengths)].split(lengths), strict=True):
                    scored[index] = values.tolist()
        # A forward pass without a backward one leaves the root's parameters gathered, and an
        # optimizer that is made next would train those and not the shards.
        self._policy.reshard_all()
        return scored

    def _likely_sequences(self) -> tuple[tuple[int, ...], ...]:
        return canary_sequences(self._policy, self._config.canary_sequences, self._device)

    def _parts(self) -> Parts:
        # The inner model, so that parameters have the names of a Hugging Face checkpoint.
        policy = Part(module=self._policy.causal, optimizer=self._optimizer)
        return {"policy": policy} | self._auxiliary_models.parts()

    def _fresh_parts(self) -> Parts:
        """What a checkpoint is loaded into."""
        self._touched = True
        self._policy.reshard_all()
        self._optimizer = self._make_optimizer()
        return self._parts()

    def _weights_alone(self) -> Parts:
        """What a checkpoint of another run is loaded into, whose optimizer may be another one."""
        self._touched = True
        self._policy.reshard_all()
        return {"policy": Part(module=self._policy.causal, trained_only=True)}

    def _load(self, folder: str, parts: Callable[[], Parts]) -> GoodCheckpoint | None:
        return load_newest(CheckpointFolder(folder), parts, self._check)

    def _check(self, manifest: CheckpointManifest) -> None:
        refuse_other_base(manifest, self._config, self._base)
        if manifest.moments == "8bit":
            eight_bit_adamw("checkpoint.moments")  # torch reads no tensors of unknown classes

    def _begin(self, start: RunStart) -> None:
        """The policy of a run without a checkpoint; the optimizer knows nothing of another run."""
        if start.origin:
            if self._load(start.origin, self._weights_alone) is None:
                fix = "It holds no checkpoint to begin with: put those of the other run back."
                raise InvalidInput("origin", start.origin, fix)
            torch.manual_seed(start.seed)
        elif self._touched:
            load_initial_weights(self._policy, self._config)
            self._touched = False
        self._optimizer = self._make_optimizer()

    def _started(self) -> RunStart:
        if self._start is None:
            raise RuntimeError("a rank was given work before start_run")
        return self._start

    def _check_ids(self, field: str, ids: list[int]) -> None:
        limit = self._policy.vocabulary
        if ids and (min(ids) < 0 or max(ids) >= limit):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise InvalidInput(field, wrong, f"Token ids of this model are 0 to {limit - 1}.")

    def _make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = make_optimizer(self._policy, self._config, self._algorithm)
        exporter = self._exporter  # a hook that held the learner would keep it alive in a circle
        optimizer.register_step_pre_hook(lambda *_: exporter.let_weights_change())
        return optimizer
