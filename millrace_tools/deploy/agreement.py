"""Whether the services of one deployment file, each of them good alone, fit together.

Each rule is about two settings, mostly of two services, that no service sees both of.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from millrace_tools.capacity.model_shape import shape_of
from services.orchestrator.config import OrchestratorConfig
from services.page.config import PageConfig
from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig


def check_agreement(configs: Mapping[str, Any], *, source: str) -> None:
    """Refuse services that would not work together.

    Args:
        configs: arguments by application; those that are left out are taken to be elsewhere.
        source: the file.

    Raises:
        InvalidInput: the first setting that does not go with another one.
    """
    for problem in _Services(configs).problems():
        raise InvalidInput(f"{source}: {problem.field}", problem.value, problem.fix)


class _Services:
    def __init__(self, configs: Mapping[str, Any]) -> None:
        self.bus: WeightBusConfig | None = _of(configs, "weight_bus", WeightBusConfig)
        self.reward: RewardServiceConfig | None = _of(
            configs, "reward_service", RewardServiceConfig
        )
        self.trainer: TrainerConfig | None = _of(configs, "trainer", TrainerConfig)
        self.rollout: RolloutServerConfig | None = _of(
            configs, "rollout_server", RolloutServerConfig
        )
        self.router: RouterConfig | None = _of(configs, "router", RouterConfig)
        self.orchestrator: OrchestratorConfig | None = _of(
            configs, "orchestrator", OrchestratorConfig
        )
        self.page: PageConfig | None = _of(configs, "page", PageConfig)

    def problems(self) -> Iterator[InvalidInput]:
        if self.trainer is not None:
            yield from _of_device(self.trainer)
        if self.trainer is not None and self.rollout is not None:
            yield from _of_model(self.trainer, self.rollout)
            yield from _of_adapter(self.trainer, self.rollout)
        if self.reward is not None:
            yield from _of_tier(self.reward)
        if self.router is not None and self.router.access.has_keys:
            yield from _of_keys({"orchestrator": self.orchestrator, "page": self.page})
        yield from self._waits()

    def _waits(self) -> Iterator[InvalidInput]:
        """Who waits for something must wait longer than that may take."""
        for waiting, for_what in self._deadlines():
            (field, longer), (limits, shorter) = waiting, for_what
            if longer <= shorter:
                fix = f"More than {shorter:g}, which is {limits}: who waits must wait longer."
                yield InvalidInput(field, longer, fix)

    def _deadlines(self) -> Iterator[tuple[tuple[str, float], tuple[str, float]]]:
        orchestrator, trainer, reward = self.orchestrator, self.trainer, self.reward
        bus, rollout, router = self.bus, self.rollout, self.router
        if orchestrator and trainer:
            yield (
                ("orchestrator.args.trainer_call_timeout_s", orchestrator.trainer_call_timeout_s),
                (
                    "trainer.args.call_timeout_s and bus_timeout_s together",
                    trainer.call_timeout_s + trainer.bus_timeout_s,
                ),
            )
            yield (
                ("orchestrator.args.trainer_timeout_s", orchestrator.trainer_timeout_s),
                ("trainer.args.start_timeout_s", trainer.start_timeout_s),
            )
        if reward:
            yield (
                ("reward_service.args.answer_deadline_s", reward.answer_deadline_s),
                ("reward_service.args.queue_wait_s", reward.queue_wait_s),
            )
        if orchestrator and reward:
            yield (
                ("orchestrator.args.score_timeout_s", orchestrator.score_timeout_s),
                ("reward_service.args.answer_deadline_s", reward.answer_deadline_s),
            )
        if orchestrator and bus and rollout:
            yield (
                ("orchestrator.args.replicas_timeout_s", orchestrator.replicas_timeout_s),
                (
                    "weight_bus.args.stage_timeout_s and rollout_server.args.commit_timeout_s "
                    "together",
                    bus.stage_timeout_s + rollout.commit_timeout_s,
                ),
            )
        if bus:
            yield (
                ("weight_bus.args.stage_timeout_s", bus.stage_timeout_s),
                ("weight_bus.args.link_timeout_s", bus.link_timeout_s),
            )
        if router and rollout:
            for name in ("first_token_s", "between_tokens_s"):
                yield (
                    (f"router.args.{name}", getattr(router, name)),
                    ("rollout_server.args.commit_timeout_s", rollout.commit_timeout_s),
                )


def _of_device(trainer: TrainerConfig) -> Iterator[InvalidInput]:
    if (trainer.device == "cuda") != (trainer.gpus_per_rank > 0):
        fix = f"Write {1 if trainer.device == 'cuda' else 0}: the device is {trainer.device}."
        yield InvalidInput("trainer.args.gpus_per_rank", trainer.gpus_per_rank, fix)


def _of_model(trainer: TrainerConfig, rollout: RolloutServerConfig) -> Iterator[InvalidInput]:
    """Another folder is let through if it holds a model of the same shape: weights travel."""
    if rollout.model != trainer.model:
        ours, theirs = shape_of(rollout.model), shape_of(trainer.model)
        different = ours is None or ours != theirs
        if different or (trainer.lora is not None and trainer.lora.push == "adapter"):
            fix = f"Write {trainer.model}, the model of trainer.args."
            yield InvalidInput("rollout_server.args.model", rollout.model, fix)
    if rollout.dtype != trainer.dtype:
        fix = (
            f"Write {trainer.dtype}, the dtype of trainer.args: in another one engines sample "
            "from other probabilities than are trained."
        )
        yield InvalidInput("rollout_server.args.dtype", rollout.dtype, fix)


def _of_adapter(trainer: TrainerConfig, rollout: RolloutServerConfig) -> Iterator[InvalidInput]:
    """Both have adapters travel, or neither, and the engine has room for the rank."""
    lora, room = trainer.lora, rollout.lora_rank
    sent = lora.rank if lora is not None and lora.push == "adapter" else None
    field = "rollout_server.args.lora_rank"
    if sent is None and room is not None:
        fix = "Leave it out, or write trainer.args.lora with `push: adapter`: whole models travel."
        yield InvalidInput(field, room, fix)
    if sent is not None and (room is None or room < sent):
        yield InvalidInput(field, room, f"Write {sent}, the rank of trainer.args.lora.")


def _of_tier(reward: RewardServiceConfig) -> Iterator[InvalidInput]:
    if reward.require_tier == "A" and not reward.use_bubblewrap:
        fix = "Leave it out, or require tier B: tier A is bubblewrap's namespaces."
        yield InvalidInput("reward_service.args.use_bubblewrap", False, fix)


def _of_keys(
    callers: Mapping[str, OrchestratorConfig | PageConfig | None],
) -> Iterator[InvalidInput]:
    for name, caller in callers.items():
        if caller is not None and caller.router_key_env is None:
            fix = "The router asks for a key: name the environment variable that has one."
            yield InvalidInput(f"{name}.args.router_key_env", None, fix)


def _of(configs: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """An application of that name may be the user's own."""
    config = configs.get(name)
    return config if isinstance(config, kind) else None
