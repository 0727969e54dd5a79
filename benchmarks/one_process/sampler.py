"""A model of transformers in the place of the engines: it samples, and scores as a teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer.

    Attributes:
        ids: its tokens, the end token among them.
        logprobs: of each, natural logarithm, at temperature 1.
        text: without the end token.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


class Sampler:
    """Weights that can be replaced, and a batch of prompts at a time."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = tokenizer

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with these weights."""
        self._model.load_state_dict(weights)

    @torch.inference_mode()
    def answers(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, greedy: bool = False
    ) -> list[Answer]:
        """One answer to each prompt, drawn by torch's own seed."""
        longest, pad = max(map(len, prompts)), self._tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(one)) + list(one) for one in prompts])
        attention = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        made = self._model.generate(
            input_ids=ids,
            attention_mask=attention,
            do_sample=not greedy,
            **({} if greedy else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
            max_new_tokens=max_tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = made.sequences[:, longest:]
        every = torch.stack(made.logits, dim=1).log_softmax(-1)
        logprobs = every.gather(-1, tokens[..., None])[..., 0]
        return list(map(self._answer, tokens.tolist(), logprobs.tolist()))

    def _answer(self, ids: list[int], logprobs: list[float]) -> Answer:
        end = self._tokenizer.eos_token_id
        length = ids.index(end) + 1 if end in ids else len(ids)
        said = [one for one in ids[:length] if one != end]
        return Answer(
            ids=tuple(ids[:length]),
            logprobs=tuple(logprobs[:length]),
            text=self._tokenizer.decode(said, skip_special_tokens=False),
        )

    @torch.inference_mode()
    def scores(self, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> list[Any]:
        """The logprob of each token of these answers."""
        rows = [[*prompt, *one.ids] for prompt, one in zip(prompts, answers, strict=True)]
        longest, pad = max(map(len, rows)), self._tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        every = self._model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        found = every.gather(-1, ids[:, 1:, None])[..., 0]
        return [
            tuple(one[len(prompt) - 1 : len(row) - 1].tolist())
            for one, prompt, row in zip(found, prompts, rows, strict=True)
        ]
