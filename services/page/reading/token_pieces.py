"""The text of each token, by the tokenizer that a run keeps with its checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

_WINDOW = 8
_LONGEST_TORN = 32
"""Tokens without a whole letter, of which no letter has so many: what a model babbles."""
_MOST_IDS = 2**31
_BROKEN = "\ufffd"


class TokenPieces:
    """Cuts an answer into the texts of its tokens.

    A tokenizer decodes whole texts: the text of one token is what it adds to the few before it.
    Bytes of a letter that is not whole yet are shown with the token that ends it.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tokenizer: Any = None

    def of(self, token_ids: Sequence[int]) -> list[str] | None:
        """One text for each token; None where the run has no tokenizer yet, or they are none."""
        tokenizer = self._found()
        if tokenizer is None or not _are_ids(token_ids):
            return None
        pieces: list[str] = []
        begin, before = 0, ""  # of what is decoded together
        for end in range(1, len(token_ids) + 1):
            whole = tokenizer.decode(token_ids[begin:end], skip_special_tokens=False)
            is_torn = whole.endswith(_BROKEN) and end < len(token_ids)
            pieces.append("" if is_torn else whole[len(before.rstrip(_BROKEN)) :])
            if end - begin >= (_WINDOW if not is_torn else _LONGEST_TORN):
                begin = end - _WINDOW // 2
                whole = tokenizer.decode(token_ids[begin:end], skip_special_tokens=False)
            before = whole
        return pieces

    def _found(self) -> Any:
        if self._tokenizer is None:
            for path in sorted(self._run.glob("checkpoints/*/model/tokenizer.json"), reverse=True):
                try:
                    self._tokenizer = Tokenizer.from_file(str(path))
                    break
                except Exception:  # noqa: BLE001  tokenizers raises nothing narrower
                    continue  # half-written by a kill: an older one does as well
        return self._tokenizer


def _are_ids(tokens: object) -> bool:
    """A line of a run's files may be damaged."""
    if not isinstance(tokens, Sequence):
        return False
    return all(isinstance(one, int) and 0 <= one < _MOST_IDS for one in tokens)
