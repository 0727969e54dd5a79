"""Conversations of six turns, with tools and thoughts, that go on from recorded tokens."""

import json
from copy import copy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GptOssConfig, PreTrainedTokenizerFast, Qwen3Config
from vllm.exceptions import VLLMValidationError

from services.protocol.rollout_server import GenerationOrder, RecordedStart
from services.rollout_server.http.continued_prompt import continued_prompt
from services.rollout_server.http.render_and_generate import rendered

from .conftest import SMALL
from .template_families import FAMILIES, Family, Turn

TURNS = (
    Turn(thought="Look in the shelf.", calls=(("look", "shelf"),), answers=("a red box",)),
    Turn(
        thought="Two boxes may be there.",
        calls=(("open", "box"), ("weigh", "box")),
        answers=("a key", "7 grams"),
        after_tools=True,
    ),
    Turn(
        thought="That is all.",
        text="It holds a key.",
        answers=("What is it for?",),
        after_tools=True,
    ),
    Turn(thought="Doors have locks.", calls=(("look", "door"),), answers=("a lock",)),
    Turn(
        thought="Try it.",
        calls=(("turn", "key"),),
        answers=("it opens\n\ntwice",),
        after_tools=True,
    ),
    Turn(thought="Yes, it fits.", text="For the door.\n\nIt opens it.", after_tools=True),
)
USER = {"role": "user", "content": "What is in the box?"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "open", "weigh", "turn")
]

HARMONY_MARKS = ("start", "end", "message", "channel", "constrain", "return", "call")


def small_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """Of bytes and a few words, with the family's own tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    said = [f"{turn.thought} {turn.text} {' '.join(turn.answers)}" for turn in TURNS]
    tokenizer.train_from_iterator(
        [*said, '\n\n{"name": "look", "arguments": {"of": "box"}}'], trainer
    )
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in family.special])
    tokenizer.add_tokens([AddedToken(one, special=False) for one in family.marks])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=family.special[0])
    fast.chat_template = family.template
    return fast


@pytest.fixture(scope="module")
def harmony_tokenizer() -> PreTrainedTokenizerFast:
    """Names for the ids of OpenAI's encoding, which vLLM has built in."""
    encoding = _harmony()
    names = {_name(encoding, number): number for number in range(200_000)}
    marks = [f"<|{name}|>" for name in HARMONY_MARKS]
    names |= {mark: encoding.encode(mark, allowed_special="all")[0] for mark in marks}
    tokenizer = Tokenizer(models.WordLevel(vocab=names, unk_token="<0>"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|return|>")


def _harmony() -> Any:
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding

    return get_encoding()


def _name(encoding: Any, number: int) -> str:
    """The text of a token, or its number where that is no text by itself."""
    try:
        name: str = encoding.decode([number])
    except UnicodeDecodeError:
        name = ""
    return name if name.isascii() and name else f"<{number}>"


@dataclass
class Model:
    """A family's renderer, and the tokens that its models sample."""

    family: Family
    renderer: Any
    tokenizer: Any

    def encoded(self, text: str) -> list[int]:
        if self.family.template is None:
            return list(_harmony().encode(text, allowed_special="all"))
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def spelled(self, text: str, thought: str) -> list[int]:
        """A text whose thought has tokens that the tokenizer would not choose: one a character."""
        before, found, after = text.partition(thought)
        letters = [token for letter in found for token in self.encoded(letter)]
        return self.encoded(before) + letters + self.encoded(after)

    async def from_template(self, messages: list[Any]) -> list[int]:
        """What vLLM renders for the whole conversation."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        chat = ChatCompletionRequest.model_validate(self.body(messages))
        _, (prompt,) = await self.renderer.render_chat(chat)
        return list(prompt["prompt_token_ids"])

    def body(self, messages: list[Any]) -> dict[str, Any]:
        body = {"messages": messages, "tools": TOOLS, "tool_choice": "none"}
        settings = self.family.settings
        return body if settings is None else body | {"chat_template_kwargs": settings}

    async def go_on(self, messages: list[Any], tokens: list[int], known: int) -> Any:
        start = RecordedStart(token_ids=tokens, messages=known)
        return await continued_prompt(self.renderer, self.body(messages), start)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """vLLM's, of a small model; no engine is started."""
    from vllm.engine.arg_utils import EngineArgs

    folder = tmp_path_factory.mktemp("model")
    small_tokenizer(FAMILIES["qwen3"]).save_pretrained(folder)
    Qwen3Config(**SMALL, head_dim=32, architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    return EngineArgs(model=str(folder), max_model_len=1024).create_engine_config()


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, config: Any, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setenv("VLLM_SYSTEM_START_DATE", "2026-01-01")
    family = FAMILIES[request.param]
    if family.template is not None:
        return served(family, config, small_tokenizer(family))
    # By this name vLLM knows the models whose prompts it does not make by a template.
    known = copy(config.model_config)
    known.hf_config = GptOssConfig(**SMALL, num_local_experts=2, head_dim=32)
    tokenizer = request.getfixturevalue("harmony_tokenizer")
    return served(family, config, tokenizer, model_config=known)


def served(family: Family, config: Any, tokenizer: Any, *, model_config: Any = None) -> Model:
    from vllm.renderers.hf import HfRenderer
    from vllm.renderers.online_renderer import OnlineRenderer
    from vllm.tokenizers.hf import get_cached_tokenizer

    tokenizer = get_cached_tokenizer(tokenizer)
    renderer = OnlineRenderer(
        model_config=model_config or config.model_config,
        renderer=HfRenderer(config, tokenizer),
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
    )
    return Model(family, renderer, tokenizer)


@dataclass
class Played:
    """A conversation that goes on from its own tokens.

    Attributes:
        tokens: prompt and answers so far.
        left_out: by turn, the places of tokens that a template without thoughts leaves out.
        cuts: reasons, where it could not go on, by turn.
    """

    model: Model
    messages: list[Any] = field(default_factory=lambda: [USER])
    tokens: list[int] = field(default_factory=list)
    left_out: list[set[int]] = field(default_factory=list)
    cuts: dict[int, str] = field(default_factory=dict)

    async def begin_turn(self, number: int) -> None:
        """The prompt of a turn, from the tokens before it if that can be."""
        if number:
            made = await self.model.go_on(self.messages, self.tokens, self._answered)
            if not isinstance(made, str):
                assert made[: len(self.tokens)] == self.tokens
                self.tokens = made
                return
            self.cuts[number] = made
            self.left_out = [set() for _ in self.left_out]
        self.tokens = await self.model.from_template(self.messages)

    @property
    def _answered(self) -> int:
        roles = [message["role"] for message in self.messages]
        return len(roles) - roles[::-1].index("assistant")

    def end_turn(self, turn: Turn, *, otherwise: bool = False) -> None:
        """The model answers, and its tools or its user after it."""
        model, several = self.model, self.model.family.several
        if not several and len(turn.calls) > 1:
            turn = Turn(
                thought=turn.thought,
                calls=turn.calls[:1],
                answers=turn.answers[:1],
                after_tools=turn.after_tools,
            )
        opening = model.encoded(model.family.opening) if model.family.opening else []
        opens = bool(opening) and self.tokens[-len(opening) :] == opening
        left_out = {len(self.tokens) - 1} if opens else set()
        for text, dropped in model.family.speaks(turn):
            sampled = model.encoded(text)
            if otherwise and dropped:
                sampled = model.spelled(text, turn.thought)
            if dropped:
                left_out |= set(range(len(self.tokens), len(self.tokens) + len(sampled)))
            self.tokens += sampled
        self.left_out.append(left_out)
        self.messages = [*self.messages, *_messages(turn, len(self.messages))]

    def without(self, turns: list[int]) -> list[int]:
        """The tokens without the thoughts of some turns."""
        gone = set().union(*(self.left_out[turn] for turn in turns))
        return [token for at, token in enumerate(self.tokens) if at not in gone]

    def dropped_turns(self) -> list[int]:
        """Turns whose thoughts the template leaves out of the prompt that comes next."""
        keeps = self.model.family.keeps
        said = [turn for turn in range(len(self.left_out)) if keeps != "all"]
        asked = [number for number in said if TURNS[number].text]
        return said if keeps == "none" else [turn for turn in said if asked and turn <= asked[-1]]


def _messages(turn: Turn, number: int) -> list[Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": turn.text, "reasoning": turn.thought}
    if not turn.calls:
        return [answer, *({"role": "user", "content": text} for text in turn.answers)]
    names = [f"call-{number}-{at}" for at in range(len(turn.calls))]
    answer["tool_calls"] = [
        {
            "id": key,
            "type": "function",
            "function": {"name": name, "arguments": f'{{"of": "{of}"}}'},
        }
        for key, (name, of) in zip(names, turn.calls, strict=True)
    ]
    results = zip(names, turn.answers, strict=True)
    return [answer, *({"role": "tool", "tool_call_id": key, "content": it} for key, it in results)]


async def all_turns(model: Model) -> Played:
    """Six turns, each of whose prompts is the template's but for thoughts."""
    played = Played(model)
    for number, turn in enumerate(TURNS):
        await played.begin_turn(number)
        from_template = await model.from_template(played.messages)
        assert played.without(played.dropped_turns()) == from_template, number
        played.end_turn(turn)
    return played


async def test_six_turns_are_one_conversation_that_equals_the_template_but_for_its_thoughts(
    model: Model,
) -> None:
    played = await all_turns(model)
    # gpt-oss ends an answer to the user with <|return|>, which history writes as <|end|>.
    assert played.cuts == ({3: "end_of_turn"} if model.family.template is None else {})


@pytest.mark.parametrize(
    ("name", "published"),
    [("qwen3", "qwen3"), ("glm", "glm4moe"), ("llama3", "llama3_1"), ("llama3", "llama3_2")],
)
async def test_six_turns_of_a_published_template_are_one_conversation_too(
    config: Any, name: str, published: str
) -> None:
    played = await all_turns(served_as_published(config, name, published))
    assert played.cuts == {}


async def test_a_tool_call_under_deepseeks_published_template_is_refused_as_by_vllm(
    config: Any,
) -> None:
    """It joins arguments as text, which vLLM gives to templates as objects."""
    with pytest.raises(VLLMValidationError, match="can only concatenate str"):
        await all_turns(served_as_published(config, "deepseek", "deepseekv3"))


def served_as_published(config: Any, name: str, published: str) -> Model:
    """By a copy of the template that TRL holds, where it is installed; it is not imported."""
    package = find_spec("trl")
    if package is None or not package.submodule_search_locations:
        pytest.skip("no published templates: pip install trl")
    folder = Path(package.submodule_search_locations[0]) / "chat_templates"
    template = (folder / f"{published}.jinja").read_text(encoding="utf-8")
    family = replace(FAMILIES[name], template=template)
    long = copy(config.model_config)
    long.max_model_len = 8192  # tools are described at length
    return served(family, config, small_tokenizer(family), model_config=long)


async def test_sampled_tokens_stay_though_their_text_has_others(model: Model) -> None:
    played = Played(model)
    for number, turn in enumerate(TURNS[:3]):
        await played.begin_turn(number)
        played.end_turn(turn, otherwise=True)
    assert played.cuts == {}
    odd = [model.spelled(turn.thought, turn.thought) for turn in TURNS[:2]]
    for turn, letters in zip(TURNS, odd, strict=False):
        assert letters != model.encoded(turn.thought)
        assert any(
            played.tokens[at:][: len(letters)] == letters for at in range(len(played.tokens))
        )


@pytest.fixture
def qwen3(config: Any) -> Model:
    return served(FAMILIES["qwen3"], config, small_tokenizer(FAMILIES["qwen3"]))


async def one_turn(model: Model, **changes: Any) -> Played:
    """A conversation after its first answer, of which a part is changed."""
    played = Played(model)
    await played.begin_turn(0)
    played.end_turn(replace(TURNS[2], after_tools=False, **changes))
    return played


@pytest.mark.parametrize("end", ["", "key", "</think>"])
async def test_an_answer_that_ends_otherwise_than_the_template_ends_it_is_cut(
    qwen3: Model, end: str
) -> None:
    played = await one_turn(qwen3)
    tokens = [*played.tokens[:-1], *qwen3.encoded(end)]
    assert await qwen3.go_on(played.messages, tokens, 2) == "end_of_turn"


async def test_an_end_that_only_a_later_message_has_is_not_that_of_the_answer(config: Any) -> None:
    """As a template does that ends answers in another way than questions."""
    tokenizer = small_tokenizer(FAMILIES["qwen3"])
    tokenizer.chat_template = (
        "{%- for m in messages %}{{- m.content }}"
        "{{- '</tool_call>' if m.role == 'assistant' else '<|im_end|>' }}{%- endfor %}"
    )
    model = served(FAMILIES["qwen3"], config, tokenizer)
    played = await one_turn(model)
    assert played.tokens[-1:] == model.encoded("<|im_end|>")
    assert await model.go_on(played.messages, played.tokens, 2) == "end_of_turn"


@pytest.mark.parametrize("written", ["", "{{- raise_exception('no answers here') }}"])
async def test_a_template_that_does_not_show_an_answer_cuts(config: Any, written: str) -> None:
    tokenizer = small_tokenizer(FAMILIES["qwen3"])
    tokenizer.chat_template = (
        "{%- for m in messages %}{%- if m.role == 'assistant' %}" + written + "{%- else %}"
        "{{- m.content }}{%- endif %}{{- '<|im_end|>' }}{%- endfor %}"
    )
    model = served(FAMILIES["qwen3"], config, tokenizer)
    played = await one_turn(model)
    assert await model.go_on(played.messages, played.tokens, 2) == "not_separable"


async def test_a_template_that_writes_no_calls_goes_on_after_them(config: Any) -> None:
    tokenizer = small_tokenizer(FAMILIES["qwen3"])
    tokenizer.chat_template = (
        "{%- for m in messages %}{{- m.content + '<|im_end|>' }}{%- endfor %}{{- '<|im_start|>' }}"
    )
    model = served(FAMILIES["qwen3"], config, tokenizer)
    played = Played(model)
    await played.begin_turn(0)
    played.end_turn(TURNS[0])
    known = list(played.tokens)
    await played.begin_turn(1)
    assert played.cuts == {}
    assert played.tokens == [*known, *model.encoded("a red box<|im_end|><|im_start|>")]


async def test_what_is_longer_than_the_context_is_cut(qwen3: Model) -> None:
    played = await one_turn(qwen3)
    long = [*qwen3.encoded("so " * 1100), *played.tokens]
    assert await qwen3.go_on(played.messages, long, 2) == "too_long"


async def test_images_are_cut(qwen3: Model) -> None:
    played = await one_turn(qwen3)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages = [*played.messages, {"role": "user", "content": [image]}]
    assert await qwen3.go_on(messages, played.tokens, 2) == "media"


async def test_vllm_takes_the_prompt_and_makes_all_else_of_the_request_as_ever(
    qwen3: Model, config: Any
) -> None:
    """`kv_transfer_params` is how it takes tokens for messages, and leaves no trace of it."""
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry
    from vllm.entrypoints.scale_out.render.serving import ServingRender

    name = config.model_config.model
    paths = [BaseModelPath(name="m", model_path=name)]
    models = OpenAIModelRegistry(model_config=config.model_config, base_model_paths=paths)
    state = SimpleNamespace(serving_render=ServingRender(models, qwen3.renderer))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state), headers={})
    played = await one_turn(qwen3)
    wanted = await qwen3.go_on(played.messages, played.tokens, 2)
    for known, prompt, cut in [
        ({"token_ids": played.tokens, "messages": 2}, wanted, None),
        ({"token_ids": played.tokens[:-1], "messages": 2}, None, "end_of_turn"),
    ]:
        body = qwen3.body(played.messages) | {"model": "m", "seed": 3, "max_tokens": 1024}
        made = await rendered(an_order(body, start=known), request)
        expected = await qwen3.from_template(played.messages) if prompt is None else prompt
        assert (made.request.token_ids, made.cut) == (expected, cut)
        params = made.request.sampling_params
        assert (params.seed, params.extra_args) == (3, None)
        assert params.max_tokens == 1024 - len(expected)
        assert json.loads(b"{%b}" % made.told()).get("cut") == cut


def an_order(body: dict[str, Any], *, start: dict[str, Any]) -> GenerationOrder:
    return GenerationOrder(
        endpoint="chat",
        body=body,
        request_id="id-1",
        shown_early=False,
        offers_tools=False,
        logprobs=True,
        interval=None,
        start=start,
    )
