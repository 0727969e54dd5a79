from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.page.reading.token_pieces import TokenPieces


def with_bytes(run: Path) -> None:
    """A tokenizer whose tokens are single bytes, with the newest checkpoint damaged."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for step in (1, 2):
        folder = run / "checkpoints" / f"step-{step:08}" / "model"
        folder.mkdir(parents=True)
        tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.json").write_text('{"version": ')


def test_pieces_join_to_the_text_and_a_torn_letter_comes_with_its_end(tmp_path: Path) -> None:
    with_bytes(tmp_path)
    path = tmp_path / "checkpoints" / "step-00000001" / "model" / "tokenizer.json"
    text = "naïve → 数, and a longer tail of plain words"
    ids = Tokenizer.from_file(str(path)).encode(text).ids
    pieces = TokenPieces(tmp_path).of(ids)
    assert pieces is not None
    assert len(pieces) == len(ids) == len(text.encode())
    assert "".join(pieces) == text
    assert pieces[2:4] == ["", "ï"]


def test_what_are_no_token_ids_has_no_pieces(tmp_path: Path) -> None:
    with_bytes(tmp_path)
    pieces = TokenPieces(tmp_path)
    assert pieces.of([5]) is not None
    for damaged in ([-1], [2**70], ["5"], [None], 5, None):
        assert pieces.of(damaged) is None


def test_a_run_without_a_checkpoint_has_no_pieces(tmp_path: Path) -> None:
    assert TokenPieces(tmp_path).of([1, 2]) is None


def test_babble_without_a_whole_letter_is_never_decoded_at_length(tmp_path: Path) -> None:
    longest = 0

    class Babble:
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return "\ufffd" * len(ids)

    pieces = TokenPieces(tmp_path)
    pieces._tokenizer = Babble()
    assert len(pieces.of(range(500)) or ()) == 500
    assert longest < 50
