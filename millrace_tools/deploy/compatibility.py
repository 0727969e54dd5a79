"""Checks that the services of one deployment file, each of them valid alone, work together.

Each rule is about settings, mostly of two services, that no service sees both of.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from millrace_tools.capacity.model_shape import shape_of
from millrace_tools.deploy.shared_placement import placement_problems
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import TrainerConfig

_TIMEOUTS = (
    (
        "reward_service.answer_deadline_s",
        "reward_service.queue_wait_s",
        "reward_service.answer_run_s",
    ),
    ("orchestrator.score_timeout_s", "reward_service.answer_deadline_s"),
    ("sandboxes.grade_deadline_s", "sandboxes.grade_run_s"),
    (
        "orchestrator.replicas_timeout_s",
        "weight_bus.stage_timeout_s",
        "rollout_server.commit_timeout_s",
    ),
    ("weight_bus.stage_timeout_s", "weight_bus.link_timeout_s"),
    ("router.first_token_s", "rollout_server.commit_timeout_s"),
    ("router.between_tokens_s", "rollout_server.commit_timeout_s"),
)
"""The first of each must be longer than the sum of the others, for which its service waits."""

_CONFIGS = {"sandboxes": "services.reward_service.workspaces.config"}
"""Modules of arguments that are not where an application's name says."""


def check_compatibility(configs: Mapping[str, BaseModel], *, source: str) -> None:
    """Refuse services that would not work together.

    Args:
        configs: arguments by application; services of other files are not checked.
        source: the file.

    Raises:
        InvalidInput: the first setting that is not compatible with another one.
    """
    # An application with the name of a service may be the user's own.
    ours = {
        name: config
        for name, config in configs.items()
        if type(config).__module__ == _CONFIGS.get(name, f"services.{name}.config")
    }
    for problem in _problems(ours):
        raise InvalidInput(f"{source}: {problem.field}", problem.value, problem.fix)


def _problems(configs: Mapping[str, Any]) -> Iterator[InvalidInput]:
    trainer, rollout = configs.get("trainer"), configs.get("rollout_server")
    reward, router = configs.get("reward_service"), configs.get("router")
    if trainer is not None and trainer.placement == "separate":
        yield from _of_gpus(trainer, rollout)
    if trainer is not None and rollout is not None:
        yield from placement_problems(trainer, rollout, configs.get("weight_bus"))
    if trainer is not None and rollout is not None:
        yield from _of_model(trainer, rollout)
        yield from _of_adapter(trainer, rollout)
    for name, jailing in (("reward_service", reward), ("sandboxes", configs.get("sandboxes"))):
        if jailing is not None and jailing.require_tier == "A" and not jailing.use_bubblewrap:
            fix = "Leave it out, or require tier B: tier A is bubblewrap's namespaces."
            yield InvalidInput(f"{name}.args.use_bubblewrap", False, fix)
    if router is not None and router.access.has_keys:
        for name in ("orchestrator", "page"):
            if name in configs and configs[name].router_key_env is None:
                fix = "The router asks for a key: name the environment variable that has one."
                yield InvalidInput(f"{name}.args.router_key_env", None, fix)
    if reward is not None and "orchestrator" in configs:
        yield from _of_scoring(reward, configs["orchestrator"])
    for settings in _TIMEOUTS:
        yield from _of_timeouts([setting.split(".") for setting in settings], configs)


def _of_gpus(trainer: TrainerConfig, rollout: RolloutServerConfig | None) -> Iterator[InvalidInput]:
    """A rank computes on one GPU, which nobody else can use."""
    share = trainer.gpus_per_rank
    fix = ""
    if (trainer.device == "cuda") != (share > 0):
        fix = f"Write {int(trainer.device == 'cuda')}: the device is {trainer.device}."
    elif trainer.device == "cpu":
        return
    elif share > 1:
        fix = "Write 1: a rank computes on one GPU."
    elif share < 1 and trainer.world_size > 1:
        fix = "Write 1: two ranks cannot be on one GPU, which NCCL refuses."
    elif share < 1 and rollout is not None and rollout.device == "cuda":
        needed = trainer.world_size + rollout.replicas * rollout.gpus
        fix = (
            f"Write 1, on at least {needed} GPUs: engines take whole ones, so that none fits "
            "beside this rank. Or write placement: shared in trainer.args and rollout_server.args, "
            "and 0. docs/hardware.md lists what fits on which GPUs."
        )
    if fix:
        yield InvalidInput("trainer.args.gpus_per_rank", share, fix)


def _of_scoring(
    reward: RewardServiceConfig, orchestrator: OrchestratorConfig
) -> Iterator[InvalidInput]:
    """Calls that hold fewer answers than there are sandboxes leave some of these idle for ever."""
    calls = orchestrator.score_concurrency
    if calls is None or "slots" not in reward.model_fields_set:  # else as many as its cores
        return
    sandboxes = reward.replicas * reward.slots
    if calls * orchestrator.score_batch < sandboxes:
        fix = (
            f"Leave it out, for as many as keep the reward service busy: {calls} calls of "
            f"{orchestrator.score_batch} answers use no more of its {sandboxes} sandboxes."
        )
        yield InvalidInput("orchestrator.args.score_concurrency", calls, fix)


def _of_timeouts(settings: list[list[str]], configs: Mapping[str, Any]) -> Iterator[InvalidInput]:
    if any(service not in configs for service, _ in settings):
        return
    waits, *others = [getattr(configs[service], name) for service, name in settings]
    if waits <= sum(others):
        field, *limits = [f"{service}.args.{name}" for service, name in settings]
        which = " and ".join(limits) + (" together" if len(limits) > 1 else "")
        fix = f"More than {sum(others):g}, which is {which}: a caller must wait longer."
        yield InvalidInput(field, waits, fix)


def _of_model(trainer: TrainerConfig, rollout: RolloutServerConfig) -> Iterator[InvalidInput]:
    """Another folder may hold a model of the same shape: its weights are replaced."""
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
    """Both use adapters, or neither, and the engine allows the adapter's rank."""
    lora, allowed = trainer.lora, rollout.lora_rank
    sent = lora.rank if lora is not None and lora.push == "adapter" else None
    field = "rollout_server.args.lora_rank"
    if sent is None and allowed is not None:
        fix = "Leave it out, or write trainer.args.lora with `push: adapter`."
        yield InvalidInput(field, allowed, fix)
    if sent is not None and (allowed is None or allowed < sent):
        yield InvalidInput(field, allowed, f"Write {sent}, the rank of trainer.args.lora.")
