"""A loss of the user's own is loaded, tried, and refused with what is wrong with it."""

from pathlib import Path

import pytest
import torch

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.tokens import ScoredTokens
from services.trainer.algorithms.losses.user_loss import load_user_loss
from services.trainer.config import TrainerConfig

GOOD = """def mine(tokens, algorithm):
    return -(tokens.current - tokens.behaviour) * tokens.advantage
"""


def configured(tmp_path: Path, source: str, name: str = "mine") -> AlgorithmConfig:
    file = tmp_path / "my_loss.py"
    file.write_text(source)
    return AlgorithmConfig(loss=f"{file}:{name}")


def test_a_function_of_a_file_is_the_loss(tmp_path: Path) -> None:
    algorithm = configured(tmp_path, GOOD)
    tokens = ScoredTokens(
        current=torch.tensor([-1.0, -2.0], requires_grad=True),
        behaviour=torch.tensor([-1.5, -1.0]),
        advantage=torch.tensor([2.0, 3.0]),
        sequence=torch.tensor([0, 0]),
        sequences=1,
    )
    loss = policy_losses(tokens, algorithm, load_user_loss(algorithm)).tokens.loss
    assert loss.tolist() == [-1.0, 3.0]


def test_the_loss_of_the_guide_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    source = page.split("```python\n")[1].split("```")[0]
    assert load_user_loss(configured(tmp_path, source, "my_loss")) is not None


def test_a_loss_may_use_the_entropy_of_each_token(tmp_path: Path) -> None:
    source = GOOD.replace("tokens.advantage", "(tokens.advantage + tokens.entropy)")
    assert source != GOOD
    assert load_user_loss(configured(tmp_path, source)) is not None


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    first = load_user_loss(configured(tmp_path, GOOD))
    second = load_user_loss(configured(tmp_path, GOOD.replace("return -", "return 2 * ")))
    assert first is not second


def test_a_correction_multiplies_the_users_loss_too(tmp_path: Path) -> None:
    algorithm = configured(tmp_path, GOOD).model_copy(update={"ratio_anchor": "proximal"})
    tokens = ScoredTokens(
        current=torch.tensor([-1.0], requires_grad=True),
        behaviour=torch.tensor([-1.5]),
        proximal=torch.tensor([-1.5]) + torch.tensor([1.5]).log(),
        advantage=torch.tensor([2.0]),
        sequence=torch.tensor([0]),
        sequences=1,
    )
    loss = policy_losses(tokens, algorithm, load_user_loss(algorithm)).tokens.loss
    assert loss.tolist() == pytest.approx([-1.5])


def test_built_in_losses_load_nothing() -> None:
    assert load_user_loss(AlgorithmConfig()) is None


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("def other(): ...\n", "no function 'mine'"),
        ("import nothing_of_the_kind\n", "cannot be imported: ModuleNotFoundError"),
        ("def mine(:\n", "cannot be imported: SyntaxError"),
        ("raise SystemError('no')\n", "cannot be imported: SystemError: no"),
        (GOOD.replace("advantage", "advantages"), "has no attribute 'advantages'"),
        ("def mine(tokens, algorithm):\n    return tokens.current.sum()\n", r"shape \[\] for 5"),
        ("def mine(tokens, algorithm):\n    return tokens.advantage\n", "does not depend on"),
        ("def mine(tokens, algorithm):\n    return 1.0\n", "returned float instead of a tensor"),
        ("def mine(tokens, algorithm):\n    return tokens.current / 0\n", "not finite"),
    ],
)
def test_what_is_wrong_with_it_is_said(tmp_path: Path, source: str, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix) as caught:
        load_user_loss(configured(tmp_path, source))
    assert caught.value.field == "algorithm.loss"


@pytest.mark.parametrize(
    ("loss", "fix"),
    [
        ("my_loss.py:mine", "relative"),
        ("/nowhere/my_loss.py:mine", "No such file"),
        ("nothing_of_the_kind:mine", "No module named"),
        ("math:nothing", "no function 'nothing'"),
    ],
)
def test_a_place_that_is_not_there_is_said(loss: str, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        load_user_loss(AlgorithmConfig(loss=loss))


def test_a_trainer_that_runs_no_code_of_others_does_not_even_read_it(tmp_path: Path) -> None:
    algorithm = configured(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\n{GOOD}")
    with pytest.raises(InvalidInput, match="user_losses: true"):
        load_user_loss(algorithm, allowed=TrainerConfig(model="m").user_losses)
    assert not (tmp_path / "ran").exists()
    assert load_user_loss(AlgorithmConfig(), allowed=False) is None
