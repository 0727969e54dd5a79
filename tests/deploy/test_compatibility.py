"""Services that are good alone and do not fit together are refused, naming both settings."""

import json

import pytest

from millrace_tools.deploy.compatibility import check_compatibility
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.reward_service.workspaces.config import WorkspacesConfig
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig

CLASSES = {
    "weight_bus": WeightBusConfig,
    "reward_service": RewardServiceConfig,
    "trainer": TrainerConfig,
    "rollout_server": RolloutServerConfig,
    "router": RouterConfig,
    "orchestrator": OrchestratorConfig,
    "sandboxes": WorkspacesConfig,
}


def _check(**changes):
    """All services with their defaults and one model, but for these changes."""
    given = {"trainer": {"model": "m"}, "rollout_server": {"model": "m"}}
    configs = {
        name: kind.model_validate(given.get(name, {}) | changes.get(name, {}))
        for name, kind in CLASSES.items()
    }
    check_compatibility(configs, source="d.yaml")


def test_the_defaults_fit_together():
    _check()


def test_calls_that_hold_an_answer_for_each_sandbox_are_let_through():
    _check(
        reward_service={"replicas": 2, "slots": 84},
        orchestrator={"score_concurrency": 11},
    )


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        (
            {"reward_service": {"queue_wait_s": 800}},
            "reward_service.args.answer_deadline_s",
            "queue_wait_s and reward_service.args.answer_run_s together",
        ),
        (
            {"reward_service": {"answer_deadline_s": 1000}},
            "orchestrator.args.score_timeout_s",
            "answer_deadline_s",
        ),
        (
            {"weight_bus": {"stage_timeout_s": 240}},
            "orchestrator.args.replicas_timeout_s",
            "stage_timeout_s and rollout_server.args.commit_timeout_s together",
        ),
        ({"weight_bus": {"link_timeout_s": 120}}, "weight_bus.args.stage_timeout_s", "120"),
        ({"router": {"first_token_s": 60}}, "router.args.first_token_s", "commit_timeout_s"),
        ({"router": {"between_tokens_s": 30}}, "router.args.between_tokens_s", "60"),
        ({"trainer": {"dtype": "bfloat16"}}, "rollout_server.args.dtype", "Write bfloat16"),
        ({"trainer": {"device": "cuda"}}, "trainer.args.gpus_per_rank", "Write 1"),
        ({"trainer": {"gpus_per_rank": 1}}, "trainer.args.gpus_per_rank", "Write 0"),
        (
            {
                "trainer": {"device": "cuda", "gpus_per_rank": 0.5, "world_size": 1},
                "rollout_server": {"device": "cuda"},
            },
            "trainer.args.gpus_per_rank",
            "Write 1, on at least 2 GPUs: engines take whole ones",
        ),
        (
            {"trainer": {"device": "cuda", "gpus_per_rank": 0.5}},
            "trainer.args.gpus_per_rank",
            "two ranks cannot be on one GPU",
        ),
        (
            {"trainer": {"device": "cuda", "gpus_per_rank": 2}},
            "trainer.args.gpus_per_rank",
            "a rank computes on one GPU",
        ),
        (
            {"reward_service": {"require_tier": "A", "use_bubblewrap": False}},
            "reward_service.args.use_bubblewrap",
            "tier A",
        ),
        (
            {"sandboxes": {"require_tier": "A", "use_bubblewrap": False}},
            "sandboxes.args.use_bubblewrap",
            "tier A",
        ),
        (
            {"sandboxes": {"grade_run_s": 2000}},
            "sandboxes.args.grade_deadline_s",
            "sandboxes.args.grade_run_s",
        ),
        (
            {"router": {"access": {"api_keys_file": "keys.yaml"}}},
            "orchestrator.args.router_key_env",
            "environment variable",
        ),
        (
            {
                "reward_service": {"replicas": 2, "slots": 84},
                "orchestrator": {"score_concurrency": 10},
            },
            "orchestrator.args.score_concurrency",
            "10 calls of 16 answers use no more of its 168 sandboxes",
        ),
        ({"rollout_server": {"model": "other"}}, "rollout_server.args.model", "Write m"),
        (
            {"trainer": {"placement": "shared"}},
            "rollout_server.args.placement",
            "Write shared, the placement of trainer.args",
        ),
        ({"trainer": {"kept_on_gpu": "all"}}, "trainer.args.kept_on_gpu", "placement: shared"),
        (
            {"rollout_server": {"kept_on_gpu": "weights"}},
            "rollout_server.args.kept_on_gpu",
            "placement: shared",
        ),
    ],
)
def test_two_settings_that_do_not_go_together_are_refused(changes, field, said):
    with pytest.raises(InvalidInput) as problem:
        _check(**changes)
    assert problem.value.field == f"d.yaml: {field}"
    assert said in problem.value.fix


SHARED = {"placement": "shared", "device": "cuda"}


def _shared(**changes):
    """Two engines of two GPUs, and four ranks that take turns with them."""
    given = {"trainer": {"world_size": 4}, "rollout_server": {"replicas": 2}}
    given["rollout_server"]["tensor_parallel_size"] = 2
    given = {name: given[name] | SHARED | changes.pop(name, {}) for name in given}
    _check(**given, **changes)


def test_a_rank_for_each_worker_of_an_engine_may_share_its_gpu():
    _shared()
    _shared(trainer={"kept_on_gpu": "parameters"}, rollout_server={"kept_on_gpu": "weights"})
    _shared(trainer={"device": "cpu"}, rollout_server={"device": "cpu"})


ADAPTER = {"rank": 4, "alpha": 8, "push": "adapter"}


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"trainer": {"gpus_per_rank": 1}}, "trainer.args.gpus_per_rank", "Write 0"),
        ({"trainer": {"gpus_per_rank": 0.5}}, "trainer.args.gpus_per_rank", "Write 0"),
        ({"trainer": {"world_size": 2}}, "trainer.args.world_size", "Write 4, a rank for each"),
        (
            {"rollout_server": {"replicas": 4}},
            "trainer.args.world_size",
            "Write 8, a rank",
        ),
        ({"rollout_server": {"max_replicas": 3}}, "rollout_server.args.max_replicas", "Leave it"),
        ({"rollout_server": {"device": "cpu"}}, "rollout_server.args.device", "Write cuda"),
        (
            {"rollout_server": {"placement": "separate"}},
            "rollout_server.args.placement",
            "Write shared",
        ),
        ({"weight_bus": {"relays": False}}, "weight_bus.args.relays", "the node's relay"),
        (
            {"trainer": {"lora": ADAPTER}, "rollout_server": {"lora_rank": 4}},
            "rollout_server.args.kept_on_gpu",
            "Write weights, or trainer.args.lora with push: merged",
        ),
    ],
)
def test_settings_with_which_ranks_and_engines_could_not_take_turns_are_refused(
    changes, field, said
):
    with pytest.raises(InvalidInput) as problem:
        _shared(**changes)
    assert problem.value.field == f"d.yaml: {field}"
    assert said in problem.value.fix


SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "vocab_size": 100,
}


def _folder(path, **changes):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SHAPE | changes))
    return str(path)


def test_another_folder_with_a_model_of_the_same_shape_is_let_through(tmp_path):
    """So that another checkpoint can be served by changing the trainer alone."""
    one, same = _folder(tmp_path / "one"), _folder(tmp_path / "same")
    _check(trainer={"model": same}, rollout_server={"model": one})
    other = _folder(tmp_path / "other", hidden_size=128)
    with pytest.raises(InvalidInput, match=r"rollout_server\.args\.model"):
        _check(trainer={"model": other}, rollout_server={"model": one})


def test_an_adapter_needs_the_very_model_it_is_added_to(tmp_path):
    one, same = _folder(tmp_path / "one"), _folder(tmp_path / "same")
    lora = {"rank": 4, "alpha": 8, "push": "adapter"}
    with pytest.raises(InvalidInput, match=r"rollout_server\.args\.model"):
        _check(trainer={"model": same, "lora": lora}, rollout_server={"model": one, "lora_rank": 4})
