"""The Serve application, without starting it."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.protocol.errors import InvalidInput
from services.trainer.app import build
from services.trainer.config import TrainerConfig

ROOT = Path(__file__).parents[2]


def test_building_the_application_loads_neither_torch_nor_transformers() -> None:
    check = (
        "import sys; from services.trainer.app import build; "
        "from services.trainer.config import TrainerConfig; "
        "build(TrainerConfig(model='hf://some/model')); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


def test_the_replica_asks_for_what_the_configuration_says() -> None:
    application = build(TrainerConfig(model="hf://some/model", num_cpus=0.25))
    deployment = application._bound_deployment
    assert deployment.name == "trainer"
    assert deployment.ray_actor_options["num_cpus"] == 0.25


@pytest.mark.parametrize(
    "wrong",
    [{}, {"model": "m", "world_sise": 2}, {"model": "m", "world_size": 0}, {"model": ""}],
)
def test_a_configuration_that_does_not_fit_is_refused(wrong) -> None:
    with pytest.raises(ValidationError):
        TrainerConfig(**wrong)


def test_a_folder_without_a_model_is_refused_and_a_hub_name_is_not_looked_up(tmp_path) -> None:
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        build(TrainerConfig(model=str(tmp_path)))
    build(TrainerConfig(model="hf://Qwen/Qwen3-0.6B"))
