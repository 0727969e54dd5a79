"""Ranks that share rows compute what one rank does, each with its slice of the tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    Phi3Config,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm_preset import ALGORITHM_PRESETS
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.model.context_parallel import ALONE, check_context_parallel
from tests.slow import first_of
from tests.trainer.conftest import VOCABULARY
from tests.trainer.shared_rows import kept_bytes, learn, learn_together, make_policy
from tests.trainer.test_algorithms_over_ranks import CHOICES, spoilt
from tests.trainer.test_learner import assert_same_metrics, assert_same_weights, run_steps
from tests.trainer.test_packing import MOVING, SIZES

HEADS: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,  # large enough that what is seen matters
}
MODELS: dict[str, Any] = {
    "two heads a key": Qwen3Config(**HEADS),
    "one key for all": LlamaConfig(**HEADS | {"num_key_value_heads": 1}),
    "a key a head, and frequencies that change beyond 70 tokens": Phi3Config(
        **SIZES | MOVING | {"num_key_value_heads": 4}
    ),
    "keys that ranks do not divide": Qwen3Config(
        **HEADS | {"num_attention_heads": 12, "num_key_value_heads": 3}
    ),
    "some layers sliding": Gemma3TextConfig(
        **HEADS, sliding_window=9, layer_types=["sliding_attention", "full_attention"]
    ),
    "absolute positions": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4),
}
ROWS = {
    "longer than a slice": [70],
    "shorter than a slice": [9, 8, 8, 8, 5, 3, 2],
    "both, padded": [31, 5, 5, 2],
    "hardly any": [2],
}


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four heads, so that four ranks can share a row."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = HEADS | {"vocab_size": VOCABULARY, "initializer_range": 0.1}
    Qwen3ForCausalLM(Qwen3Config(**sizes, max_position_embeddings=512)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", MODELS)
def test_logprobs_and_gradients_are_those_of_one_rank(four_ranks, model, rows) -> None:
    logprobs, entropies, gradients = learn(make_policy(MODELS[model], ALONE), ROWS[rows])
    for size in (2, 4):
        for found in four_ranks.call("do", learn_together, size, MODELS[model], ROWS[rows]):
            np.testing.assert_allclose(found[0], logprobs.numpy(), rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(found[1], entropies.numpy(), rtol=1e-6, atol=1e-7)
            for name, one in gradients.items():
                # Norms compute in float32 even in a float64 model, so not to the last digit.
                np.testing.assert_allclose(found[2][name], one.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_compiled_layers_share_rows(rank_groups) -> None:
    model, rows = MODELS["two heads a key"], ROWS["both, padded"]
    plain = rank_groups[2].call("do", learn_together, 2, model, rows)[0]
    for found in rank_groups[2].call("do", learn_together, 2, model, rows, True):
        np.testing.assert_allclose(found[0], plain[0], rtol=1e-10)
        for name, one in plain[2].items():
            np.testing.assert_allclose(found[2][name], one, rtol=1e-6, atol=1e-10)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "GRPO": {"preset": "grpo", "ratio_anchor": "proximal", "minibatches": 2, "entropy_bonus": 0.1},
    "a row or none": {"preset": "grpo", "minibatches": 12},
    "GSPO": {"preset": "gspo", "minibatches": 2},
    **{name: CHOICES[name] for name in CHOICES if name not in ALGORITHM_PRESETS},
}


@pytest.mark.parametrize("algorithm", first_of(ALGORITHMS))
def test_steps_of_ranks_that_share_rows_are_those_of_one_rank(
    rank_groups, four_ranks, wide_model, make_batch, make_start, algorithm
) -> None:
    start = make_start(**ALGORITHMS[algorithm])
    batches = [make_batch(1, groups=3), make_batch(2, groups=3)]
    expected = run_steps(rank_groups[1], wide_model, start, batches, micro_batch_tokens=100_000)
    assert expected[0][0].metrics["grad_norm"] > 0
    for ranks, size, settings in (
        (rank_groups[2], 2, {}),
        (four_ranks, 2, {"model_copies": 2}),
        (four_ranks, 4, {"activation_checkpointing": True}),
    ):
        found = run_steps(
            ranks,
            wide_model,
            start,
            batches,
            context_parallel=size,
            micro_batch_tokens=60,
            **settings,
        )
        for one, other in zip(found[0], expected[0], strict=True):
            assert one.tokens == other.tokens
            assert_same_metrics(one.metrics, other.metrics)
        assert_same_weights(found[1], expected[1])


@pytest.mark.parametrize("dtype", first_of(["float32", "bfloat16"]))
def test_an_adapter_learns_from_shared_rows(
    rank_groups, four_ranks, wide_model, make_batch, make_start, dtype
) -> None:
    def adapted(ranks: Any, **settings: Any) -> tuple[Any, dict[str, Any]]:
        lora = LoraConfig(rank=3, alpha=12.0, targets=("q_proj", "up_proj"))
        ranks.load(wide_model, lora=lora, dtype=dtype, **settings)
        ranks.call("start_run", make_start(kl={"coefficient": 0.2}), 0)
        reports = [ranks.call("train", make_batch(step), 0, step)[0] for step in (1, 2)]
        return reports, ranks.call("adapter")[0]

    tolerance = {"float32": 2e-5, "bfloat16": 0.03}[dtype]
    (one, expected), (shared, found) = (
        adapted(rank_groups[1]),
        adapted(four_ranks, context_parallel=4, micro_batch_tokens=60),
    )
    for name in ("loss", "grad_norm", "kl_reference", "entropy"):
        values = [[report.metrics[name] for report in several] for several in (shared, one)]
        assert values[0] == pytest.approx(values[1], rel=tolerance, abs=tolerance)
    if dtype == "float32":
        assert_same_weights(found, expected)


def test_scores_for_canaries_are_those_of_one_rank(rank_groups, four_ranks, wide_model) -> None:
    sequences = [[(7 * place) % VOCABULARY for place in range(length)] for length in (40, 9, 3, 1)]

    def scores(ranks: Any, **settings: Any) -> list[list[float]]:
        ranks.load(wide_model, micro_batch_tokens=48, **settings)
        found = {
            key: one for part in ranks.call("logprobs", sequences) for key, one in part.items()
        }
        return [found[index] for index in range(len(sequences))]

    expected = scores(rank_groups[1])
    for size in (2, 4):
        for one, other in zip(scores(four_ranks, context_parallel=size), expected, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks_to_a_row(
    rank_groups, four_ranks, wide_model, make_batch, make_start
) -> None:
    start = make_start()
    run_steps(four_ranks, wide_model, start, [make_batch(1)], context_parallel=4)
    four_ranks.call("save", 1)
    expected = four_ranks.call("train", make_batch(2), 1, 2)[0]
    for ranks, size in ((rank_groups[1], 1), (rank_groups[2], 2)):
        ranks.load(wide_model, context_parallel=size)
        assert ranks.call("start_run", start, 7)[0].step == 1
        found = ranks.call("train", make_batch(2), 1, 2)[0]
        assert_same_metrics(found.metrics, expected.metrics)


def test_what_is_not_finite_and_what_is_detailed_is_reported_once(
    four_ranks, wide_model, make_batch, make_start
) -> None:
    four_ranks.load(wide_model, context_parallel=2, micro_batch_tokens=60)
    four_ranks.call("start_run", make_start(), 0)
    batch = make_batch(1, groups=4)
    object.__setattr__(batch, "detailed", (1, 3))
    steps = four_ranks.call("train", batch, 0, 1)
    details = [(one.group_id, one.index) for step in steps for one in step.details]
    assert sorted(details) == [(group, index) for group in (1, 3) for index in range(4)]
    report = four_ranks.call("train", spoilt(make_batch(2, groups=4), 2), 1, 2)[0]
    assert report.skipped_groups == (2,)
    assert report.metrics["nonfinite_fraction"] == pytest.approx(1 / report.tokens)


def test_a_rank_keeps_its_share_of_the_activations(four_ranks) -> None:
    model = LlamaConfig(**HEADS | {"num_key_value_heads": 4})
    rows = [700, 200, 100]
    whole = four_ranks.call("do", kept_bytes, 1, model, rows)[0]
    for size in (2, 4):
        for found in four_ranks.call("do", kept_bytes, size, model, rows):
            assert found < 1.05 * whole / size


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"context_parallel": 3}, "divisor of world_size / model_copies"),
        ({"context_parallel": 4, "model_copies": 2}, "divisor of world_size / model_copies"),
        ({"context_parallel": 2, "packing": "off"}, "packed rows only"),
    ],
)
def test_ranks_that_cannot_share_rows_are_refused(settings, why) -> None:
    with pytest.raises(InvalidInput, match=f"context_parallel.*{why}"):
        TrainerConfig.from_data({"model": "m", "world_size": 4} | settings, source="trainer")
    assert TrainerConfig(model="m", world_size=8, context_parallel=2).row_groups == 4


def test_models_that_cannot_share_rows_are_refused(rank_groups, tmp_path) -> None:
    softcap = Gemma2Config(**HEADS, final_logit_softcapping=None)
    Gemma2ForCausalLM(softcap).save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match=r"trainer\.context_parallel.*packed.*softcap"):
        rank_groups[2].load(tmp_path, context_parallel=2)
    rank_groups[2].load(tmp_path)
    config = TrainerConfig(model="m", world_size=24, context_parallel=8)
    with pytest.raises(InvalidInput, match=r"context_parallel.*12 attention heads.*1, 2, 3, 4, 6"):
        check_context_parallel(config, LlamaConfig(hidden_size=48, num_attention_heads=12))
    check_context_parallel(config, LlamaConfig(num_attention_heads=16))
