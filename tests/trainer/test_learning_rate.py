"""The learning rate over a run, by hand."""

import pytest

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.step.learning_rate import learning_rate


def rates(updates: int, **keys: object) -> list[float]:
    algorithm = AlgorithmConfig.model_validate({"learning_rate": 1.0} | keys)
    return [learning_rate(algorithm, update, updates) for update in range(updates)]


def test_without_a_decay_the_rate_rises_and_stays() -> None:
    assert rates(4, warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]


def test_a_linear_decay_goes_on_to_its_share() -> None:
    assert rates(4, decay="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates(4, decay="linear", decay_to=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_a_cosine_is_half_way_down_in_the_middle() -> None:
    found = rates(4, decay="cosine", warmup_steps=2)
    assert found[:2] == [0.5, 1.0]
    assert found[2:] == pytest.approx([1.0, 0.5])


def test_warm_up_stable_decay() -> None:
    found = rates(6, warmup_steps=1, decay="linear", decay_steps=2)
    assert found == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0, 0.5])


def test_beyond_the_plan_the_rate_stays_where_it_ended() -> None:
    algorithm = AlgorithmConfig(learning_rate=1.0, decay="linear", decay_to=0.1)
    assert learning_rate(algorithm, 9, 4) == pytest.approx(0.1)


def test_keys_of_a_decay_need_one() -> None:
    with pytest.raises(ValueError, match="need a decay"):
        AlgorithmConfig(decay_steps=3)
