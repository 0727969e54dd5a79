"""Which gaps between a replica's logprobs and the trainer's are wrong."""

import math
import random
from dataclasses import replace

import pytest

from services.protocol.weights.weights import CanaryLogprobs, Dtype, TensorSpec, WeightManifest
from services.weight_bus.delivery.canary_gaps import ENOUGH, Gaps, GoodGaps

TOKENS = 250


def version(number: int, dtype: Dtype = Dtype.BFLOAT16, canary: int = 1) -> WeightManifest:
    spec = TensorSpec(name="w", dtype=dtype, shape=(1,), shard_numels=(1,))
    return WeightManifest(
        version=number,
        train_step=number,
        tensors=(spec,),
        buckets=((0, 1),),
        digests=(("",),),
        canary=((canary,),),
    )


def rounded(draw: random.Random, scale: float) -> Gaps:
    """Of an answer that differs by rounding, with a heavy tail."""
    gaps = [draw.gauss(0.0, scale) * math.exp(draw.gauss(0.0, 0.7)) for _ in range(TOKENS)]
    return Gaps.between((tuple(gaps),), ((0.0,) * TOKENS,))


def practised(scale: float, pushes: int = ENOUGH) -> tuple[GoodGaps, random.Random]:
    good, draw = GoodGaps(None), random.Random(1)
    for number in range(pushes):
        assert good.judge("r", rounded(draw, scale), version(number)) is None
    return good, draw


def test_gaps_of_an_answer() -> None:
    gaps = Gaps.between(((-1.0, -2.0), (-3.5,)), ((-1.5, -2.0), (-3.5,)))
    assert gaps == Gaps(tokens=3, mean=0.5 / 3, high=0.5, largest=0.5)


@pytest.mark.parametrize("answer", [((math.nan,),), ((-1.0, -1.0),), (), ((-1.0,), (-1.0,))])
def test_an_answer_that_cannot_be_compared_is_infinitely_wrong(answer: CanaryLogprobs) -> None:
    gaps = Gaps.between(answer, ((-1.0,),))
    assert gaps.mean == gaps.largest == math.inf
    assert GoodGaps(None).judge("r", gaps, version(0)) is not None


@pytest.mark.parametrize(
    ("dtype", "largest"), [(Dtype.FLOAT32, 0.01), (Dtype.FLOAT16, 2.0), (Dtype.BFLOAT16, 10.0)]
)
def test_the_first_answer_is_bound_by_the_element_type(dtype: Dtype, largest: float) -> None:
    good = GoodGaps(None)
    fine = Gaps(tokens=TOKENS, mean=0.9 * largest / 64, high=0.0, largest=0.9 * largest)
    manifest = version(0, dtype)
    assert good.judge("r", fine, manifest) is None
    assert "canary_max_gap" in str(good.judge("r", replace(fine, largest=1.1 * largest), manifest))
    assert "average" in str(good.judge("r", replace(fine, mean=1.1 * largest / 64), manifest))


def test_a_bound_of_ones_own_takes_the_place_of_that() -> None:
    gaps = Gaps(tokens=TOKENS, mean=0.004, high=0.02, largest=0.4)
    assert GoodGaps(0.5).judge("r", gaps, version(0)) is None
    assert "more than 0.3" in str(GoodGaps(0.3).judge("r", gaps, version(0)))


def test_two_thousand_good_pushes_to_four_replicas_raise_no_alarm() -> None:
    good, draw = GoodGaps(None), random.Random(3)
    scale = 0.004
    for number in range(2000):
        scale *= 1.0005  # over the run nearly three times
        for replica in "abcd":
            assert good.judge(replica, rounded(draw, scale), version(number)) is None


def test_twice_the_gap_of_all_before_is_wrong() -> None:
    good, draw = practised(0.004)
    problem = good.judge("r", rounded(draw, 0.008), version(ENOUGH))
    assert problem is not None
    assert "good answers" in problem


def test_gaps_within_rounding_are_right_whatever_they_were_before() -> None:
    good = GoodGaps(None)
    for number in range(ENOUGH):
        nothing = Gaps(tokens=TOKENS, mean=0.0, high=0.0, largest=0.0)
        assert good.judge("r", nothing, version(number)) is None
    little = Gaps(tokens=TOKENS, mean=0.0004, high=0.001, largest=0.01)
    assert good.judge("r", little, version(ENOUGH)) is None


def test_other_sequences_are_measured_anew() -> None:
    good, draw = practised(0.004)
    assert good.judge("r", rounded(draw, 0.02), version(ENOUGH, canary=2)) is None


def test_gaps_that_stay_after_everything_was_sent_again_are_a_new_measure() -> None:
    good, draw = practised(0.004)
    assert good.judge("r", rounded(draw, 0.01), version(ENOUGH)) is not None
    assert good.judge("r", rounded(draw, 0.01), version(ENOUGH)) is None
    assert good.judge("s", rounded(draw, 0.01), version(ENOUGH)) is None


@pytest.mark.parametrize("order", [("good", "bad"), ("bad", "good")])
def test_they_are_not_if_another_replica_does_better(order: tuple[str, str]) -> None:
    good, draw = practised(0.004)
    for number in range(ENOUGH, ENOUGH + 5):
        for replica in order:
            gaps = rounded(draw, 0.004 if replica == "good" else 0.01)
            problem = good.judge(replica, gaps, version(number))
            assert (problem is None) == (replica == "good")


def test_what_is_beyond_all_bounds_never_is() -> None:
    good, draw = practised(0.004)
    for _ in range(3):
        assert good.judge("r", rounded(draw, 1.0), version(ENOUGH)) is not None


def test_a_few_tokens_that_met_another_expert_are_no_fault() -> None:
    good, draw = practised(0.004)
    gaps = [draw.gauss(0.0, 0.004) for _ in range(TOKENS - 6)] + [3.0] * 6
    answer = Gaps.between((tuple(gaps),), ((0.0,) * TOKENS,))
    assert good.judge("r", answer, version(ENOUGH)) is None
