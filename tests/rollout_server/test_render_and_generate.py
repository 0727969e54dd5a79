"""What a replica makes of a client's request before it generates from it."""

import pytest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
    GenerateRequest,
    ReasoningParserKwargs,
)
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from services.protocol.rollout_server import HISTORY_DEPENDENT, UNMASKED, GenerationOrder
from services.rollout_server.http.render_and_generate import prepare


def prepared(
    params: SamplingParams, *, reasoning: bool = False, **order: object
) -> GenerateRequest:
    kwargs = ReasoningParserKwargs(chat_template_kwargs={}) if reasoning else None
    rendered = GenerateRequest(
        token_ids=[10, 11], sampling_params=params, reasoning_parser_kwargs=kwargs
    )
    given = {
        "endpoint": "chat",
        "body": {},
        "request_id": "id-1",
        "shown_early": False,
        "offers_tools": False,
        "logprobs": True,
        "interval": None,
    }
    return prepare(rendered, GenerationOrder(**{**given, **order}))


def test_the_first_request_streams_text_with_usage_and_logprobs() -> None:
    request = prepared(SamplingParams(max_tokens=9))
    assert (request.stream, request.output_mode, request.request_id) == (True, "text", "id-1")
    assert request.stream_options is not None
    assert request.stream_options.include_usage
    assert request.sampling_params.logprobs == 0


def test_logprobs_that_nobody_wants_are_not_asked_for_unless_a_parser_looks_at_entries() -> None:
    unwanted = {"logprobs": False}
    assert prepared(SamplingParams(), **unwanted).sampling_params.logprobs is None
    early = unwanted | {"shown_early": True}
    assert prepared(SamplingParams(), **early).sampling_params.logprobs is None
    assert prepared(SamplingParams(), reasoning=True, **early).sampling_params.logprobs == 0
    tools = early | {"offers_tools": True}
    assert prepared(SamplingParams(), **tools).sampling_params.logprobs == 0


@pytest.mark.parametrize(("asked", "made"), [(0, 0), (5, 6), (20, 20)])
def test_a_completion_is_asked_for_one_alternative_more(asked: int, made: int) -> None:
    params = SamplingParams(logprobs=asked)
    assert prepared(params, endpoint="completions").sampling_params.logprobs == made
    assert prepared(SamplingParams(logprobs=asked)).sampling_params.logprobs == asked


@pytest.mark.parametrize(("max_tokens", "streams"), [(4, False), (5, True)])
def test_an_answer_that_fits_in_one_chunk_comes_whole(max_tokens: int, streams: bool) -> None:
    request = prepared(SamplingParams(max_tokens=max_tokens), interval=4)
    assert request.stream is streams
    assert request.sampling_params.stream_interval == 4


def test_an_answer_seen_early_that_can_only_be_made_again_gets_a_seed() -> None:
    penalised = {"presence_penalty": 0.5}
    assert prepared(SamplingParams(**penalised)).sampling_params.seed is None
    early = prepared(SamplingParams(**penalised), shown_early=True).sampling_params
    assert early.seed is not None
    assert prepared(SamplingParams(seed=3, **penalised), shown_early=True).sampling_params.seed == 3
    grammar = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    assert prepared(grammar, shown_early=True).sampling_params.seed is not None
    assert prepared(SamplingParams(), shown_early=True).sampling_params.seed is None


def test_no_call_of_a_session_with_fixed_settings_rules_out_or_forces_tokens() -> None:
    """The trainer could not compute the logprobs."""
    theirs = SamplingParams(
        logit_bias={5: -100.0},
        allowed_token_ids=[1, 2],
        bad_words=["no"],
        min_tokens=40,
        max_tokens=60,
        thinking_token_budget=3,
        trace_decode_token_ids=[1, 2],
    )
    fixed = {"sampling": {"temperature": 1.0}, "max_tokens": 20}
    params = prepared(theirs, fixed=fixed).sampling_params
    free = SamplingParams(temperature=1.0, max_tokens=20)
    assert {name: getattr(params, name) for name in UNMASKED} == {
        name: getattr(free, name) for name in UNMASKED
    }


def test_what_depends_on_history_are_names_that_sampling_parameters_have() -> None:
    known = {*SamplingParams.__struct_fields__, "watermarking"}
    assert set(HISTORY_DEPENDENT) <= known


@pytest.mark.parametrize(("asked", "made"), [(900, 20), (4, 4), (None, 20)])
def test_settings_of_a_session_hold_in_place_of_the_clients(asked: int | None, made: int) -> None:
    fixed = {"sampling": {"temperature": 0.7, "top_p": 1.0, "seed": 5}, "max_tokens": 20}
    theirs = SamplingParams(temperature=0.0, top_p=0.1, stop=["x"], max_tokens=asked)
    params = prepared(theirs, fixed=fixed).sampling_params
    assert (params.temperature, params.top_p, params.seed) == (0.7, 1.0, 5)
    assert (params.max_tokens, params.stop) == (made, ["x"])
