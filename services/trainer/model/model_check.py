"""Whether a model scores tokens here as it does by its own code, and how: tried on a twin.

Models cap scores, mask, scale logits and mix tokens of a row in ways of their own. Training
one whose logprobs we compute in another way would go wrong in silence. So, before a model is
loaded, a twin of it scores rows in each way that the trainer knows, and every way is compared
with the twin's own forward pass with eager attention.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from services.observability.log import Log
from services.protocol.errors import InvalidInput
from services.trainer.batch.packing import PackedRows
from services.trainer.batch.prefix_tree import PrefixTree
from services.trainer.config import TrainerConfig
from services.trainer.model.context_parallel import FIELD
from services.trainer.model.packed_attention import (
    PACKED,
    Unpackable,
    packed_hidden,
    padded_hidden,
)
from services.trainer.model.token_logprobs import LogitForm, Logits, token_logprobs
from services.trainer.model.twin import NoTwin, make_twin

TOLERANCE = 1e-3
"""Nats that a logprob of the twin may differ; float32 leaves about 1e-5."""

_LENGTHS = (29, 12, 5)  # the first beyond two windows, the last within one
_STEM = 19  # tokens that rows share, beyond two windows
_SCALES = re.compile(r"(logit|output|head).*(scal|multiplier)")
_CAPS = re.compile(r"logit.*cap")
_FEATURES = re.compile(r"window|chunk|cap|scal|multiplier|bias|alibi|sink|types|rope")
_MAX_TRIED = 12

_log = Log("trainer")


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a model is called so that it scores as its own forward pass does.

    Attributes:
        attention: what transformers calls the attention.
        packs: whether rows are laid end to end instead of padded.
        shares: whether what rows have in common is computed once.
        form: what is done to the output layer's product.
    """

    attention: str
    packs: bool
    form: LogitForm
    shares: bool = False


@dataclass(frozen=True, kw_only=True)
class _Checked:
    scoring: Scoring | None
    unpacked: str = ""
    uneven: str = ""
    unshared: str = ""


def check_model(config: TrainerConfig, hugging_face: Any) -> Scoring:
    """Choose how a model is called, by a twin of it.

    The result depends on the configurations alone, so all ranks choose alike.

    Args:
        config: says whether rows are to be packed, and the model's name for messages.
        hugging_face: transformers' configuration of the model.

    Raises:
        InvalidInput: rows cannot be packed and `packing` is `on` or ranks are to share them, or
            cannot share prefixes and `shared_prefixes` is `on`; or the model's logprobs come out
            wrong in every way.
    """
    key = (type(hugging_face), repr(hugging_face), config.packing != "off")
    if key not in _known:
        try:
            _known[key] = _check(hugging_face, packing=config.packing != "off")
        except NoTwin as error:
            _known[key] = _Checked(
                scoring=None, uneven=f"no small copy of it can be tried: {error}"
            )
    found = _known[key]
    model = hugging_face.model_type
    if found.scoring is None:
        fix = f"Models of type {model} would be trained wrongly: {found.uneven}. Use another model."
        raise InvalidInput("trainer.model", config.model, fix)
    if config.context_parallel > 1 and found.unpacked:
        fix = f"Its ranks share packed rows, and rows of {model} cannot be packed: {found.unpacked}"
        raise InvalidInput(FIELD, config.context_parallel, f"{fix}. Choose 1.")
    if config.packing == "on" and found.unpacked:
        fix = f"Rows of {model} cannot be packed: {found.unpacked}. Choose auto or off."
        raise InvalidInput("trainer.packing", "on", fix)
    unshared = _unshared(config, found)
    if config.shared_prefixes == "on" and unshared:
        fix = f"Rows of {model} cannot share prefixes: {unshared}. Choose auto or off."
        raise InvalidInput("trainer.shared_prefixes", "on", fix)
    if not dist.is_initialized() or dist.get_rank() == 0:
        if unshared:
            _log.info("prefixes_are_not_shared", model=model, why=unshared)
        if found.unpacked:
            _log.warning("rows_are_padded", model=model, why=found.unpacked)
        if found.uneven:
            _log.warning("attention_is_eager", model=model, why=found.uneven)
    return replace(found.scoring, shares=not unshared)


def _unshared(config: TrainerConfig, found: _Checked) -> str:
    """Why rows do not share prefixes; empty if they do."""
    if config.shared_prefixes == "off":
        return "trainer.shared_prefixes is off"
    if config.packing == "off" or found.unpacked:
        return "they are padded"
    if config.context_parallel > 1:
        return "ranks share them (trainer.context_parallel)"
    if config.shared_prefixes == "auto" and config.device == "cuda":
        return "it has not run on CUDA yet; trainer.shared_prefixes: on tries it"
    return found.unshared


_known: dict[Any, _Checked] = {}


def remove_randomness(causal: nn.Module) -> None:
    """Let the model compute the same each time, as engines do: no dropout, no jitter of routers.

    A ratio or a canary scored with either would compare two different policies. Only modules
    that recompute activations are in training mode, because transformers asks for it there.
    """
    causal.eval()
    module: Any
    for module in causal.modules():
        module.training = bool(getattr(module, "gradient_checkpointing", False))
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
                setattr(module, name, 0.0)


def _check(hugging_face: Any, *, packing: bool) -> _Checked:
    twin = make_twin(hugging_face)
    rows = _rows()
    expected = _expected(twin, rows)
    form, problem = _logit_form(hugging_face, twin, rows[0])
    if form is None:
        return _Checked(scoring=None, uneven=problem)
    if twin.supports_gradient_checkpointing:
        twin.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    remove_randomness(twin)
    unpacked = uneven = ""
    if packing:
        unpacked = _packed_problem(twin, rows, expected, form(twin.config))
        if unpacked == "":
            return _Checked(
                scoring=_scoring(PACKED, form, hugging_face),
                unshared=_sharing_problem(twin, form(twin.config)),
            )
        unpacked += _feature(hugging_face, PACKED) if unpacked.startswith("logprobs") else ""
    for attention in ("sdpa", "eager"):
        problem = _problem(twin, attention, rows, expected, form(twin.config))
        if problem == "":
            scoring = _scoring(attention, form, hugging_face)
            return _Checked(scoring=scoring, unpacked=unpacked, uneven=uneven)
        uneven = problem + (_feature(hugging_face, attention) if "logprobs" in problem else "")
    return _Checked(scoring=None, uneven=uneven)


def _scoring(attention: str, form: partial[LogitForm], hugging_face: Any) -> Scoring:
    return Scoring(attention=attention, packs=attention == PACKED, form=form(hugging_face))


def _sharing_problem(twin: Any, form: LogitForm) -> str:
    first, other, third = _rows()
    rows = [first, torch.cat([first[:_STEM], other]), torch.cat([first[:_STEM], other[:5], third])]
    shared = [0, _STEM, _STEM + 5]
    return _problem(twin, PACKED, rows, _expected(twin, rows), form, shared)


def _rows() -> list[Tensor]:
    return [(torch.arange(count) * 7 + 3 * count) % 61 + 3 for count in _LENGTHS]


@torch.no_grad()
def _expected(twin: Any, rows: Sequence[Tensor]) -> list[Tensor]:
    """Logprobs `[length - 1]` of each row's tokens, each row alone, by the model's own code."""
    twin.set_attn_implementation("eager")
    found = []
    for row in rows:
        logs = twin(input_ids=row[None], use_cache=False).logits[0].float().log_softmax(-1)
        found.append(logs[:-1].gather(-1, row[1:, None])[:, 0])
    return found


@torch.no_grad()
def _ours(
    twin: Any, rows: Sequence[Tensor], form: LogitForm, shared: Sequence[int] = ()
) -> list[Tensor]:
    lengths, ids = [len(row) for row in rows], torch.cat(list(rows))
    hidden = packed_hidden if twin.config._attn_implementation == PACKED else padded_hidden
    if shared:
        tree = PrefixTree.of(ids.numpy(), lengths, shared)
        states = packed_hidden(twin, tree.input_ids, tree)[tree.at]
    else:
        states = hidden(twin, ids, PackedRows.of(lengths))
    found = []
    for row, own in zip(rows, states.split(lengths), strict=True):
        logits = Logits(form=form)
        head = twin.get_output_embeddings()
        found.append(token_logprobs(own[:-1], head, row[1:], logits, entropy="none")[0])
    return found


def _problem(
    twin: Any,
    attention: str,
    rows: Sequence[Tensor],
    expected: Sequence[Tensor],
    form: LogitForm,
    shared: Sequence[int] = (),
) -> str:
    """What is wrong with this way of scoring; empty if nothing is."""
    try:
        twin.set_attn_implementation(attention)
        if twin.config._attn_implementation != attention:
            return f"its code does not let its attention be {attention}"
        found = _ours(twin, rows, form, shared)
    except Exception as error:  # noqa: BLE001  (code of any architecture runs here)
        return str(error) if isinstance(error, Unpackable) else f"it raises {error!r}"[:300]
    gap = (torch.cat(found) - torch.cat(list(expected))).abs().max().item()
    if gap <= TOLERANCE:
        return ""
    return f"logprobs differ by {gap:.2g} nats from its own forward pass"


def _packed_problem(
    twin: Any, rows: Sequence[Tensor], expected: Sequence[Tensor], form: LogitForm
) -> str:
    problem = _problem(twin, PACKED, rows, expected, form)
    if not problem.startswith("logprobs"):
        return problem
    alone = [_problem(twin, PACKED, [r], [e], form) for r, e in zip(rows, expected, strict=True)]
    return problem if any(alone) else f"rows in one sequence change each other: {problem}"


def _logit_form(hugging_face: Any, twin: Any, row: Tensor) -> tuple[partial[LogitForm] | None, str]:
    """Which keys of the configuration change the output layer's product, and how.

    Every factor, divisor and cap that the configuration names is tried.

    Returns:
        What makes the form from a configuration, or None and the reason.
    """
    head = twin.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None, f"its output layer is a {type(head).__name__}, and only a linear one is known"
    with torch.no_grad():
        hidden = twin.base_model(input_ids=row[None], use_cache=False).last_hidden_state
        wanted = twin(input_ids=row[None], use_cache=False).logits.float()
        product = head(hidden).float()
    for form in _forms(twin.config.get_text_config()):
        made = form(twin.config)
        if (
            made.scale > 0
            and (made.of(product.clone()) - wanted).abs().max() <= 1e-4 * wanted.abs().max()
        ):
            return form, ""
    names = [
        *_named(twin.config.get_text_config(), _SCALES),
        *_named(twin.config.get_text_config(), _CAPS),
    ]
    by = f" (its configuration has {', '.join(names)})" if names else ""
    return None, f"its logits are not its output layer's product, scaled and capped{by}"


def _forms(text: Any) -> Iterator[partial[LogitForm]]:
    for cap in (None, *_named(text, _CAPS)):
        yield partial(_form, scale=None, divide=False, cap=cap)
        for scale in _named(text, _SCALES):
            for divide in (False, True):
                yield partial(_form, scale=scale, divide=divide, cap=cap)


def _form(config: Any, *, scale: str | None, divide: bool, cap: str | None) -> LogitForm:
    text = config.get_text_config()
    factor = float(getattr(text, scale)) if scale else 1.0
    return LogitForm(
        scale=1 / factor if divide else factor, cap=float(getattr(text, cap)) if cap else None
    )


def _named(text: Any, names: re.Pattern[str]) -> list[str]:
    """Names of positive numbers in a configuration, properties included."""
    return [
        name
        for name in dir(text)
        if names.search(name)
        and isinstance(value := getattr(text, name, None), int | float)
        and not isinstance(value, bool)
        and value > 0
    ]


def _feature(hugging_face: Any, attention: str) -> str:
    """The keys without which the difference is gone, as the end of a sentence; else empty."""
    found = []
    for name, value in _features(hugging_face.get_text_config())[:_MAX_TRIED]:
        changed = copy.deepcopy(hugging_face)
        try:
            setattr(changed.get_text_config(), name, value)
            twin = make_twin(changed, wide=False)
            rows = _rows()
            form, _ = _logit_form(changed, twin, rows[0])
            remove_randomness(twin)
            expected = _expected(twin, rows)
        except Exception:  # noqa: BLE001  (without this key the code may not run at all)
            continue
        if form is not None and not _problem(twin, attention, rows, expected, form(twin.config)):
            found.append(name)
    return f", because of {' or '.join(found)} in its configuration" if found else ""


def _features(text: Any) -> list[tuple[str, object]]:
    """Keys that may change scores, each with the value that turns it off."""
    found: list[tuple[str, object]] = []
    for name, value in vars(text).items():
        if not _FEATURES.search(name) or value in (None, False, 0):
            continue
        if isinstance(value, bool):
            found.append((name, False))
        elif isinstance(value, int | float):
            found.append((name, type(value)(1) if re.search(r"scal|multipl", name) else None))
        elif name == "layer_types":
            found.append((name, ["full_attention"] * len(value)))
    return found
