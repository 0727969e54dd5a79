"""Texts of users: files that they wrote, and what their code and models say."""

from pathlib import Path

from services.protocol.errors import InvalidInput


def read_text_file(path: str | Path, *, field: str = "file") -> str:
    """The text of a UTF-8 file.

    Raises:
        InvalidInput: for `field`: the file cannot be read, or is not UTF-8; it names the line.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(field, str(path), f"It cannot be read: {error.strerror}.") from None
    try:
        # As a file that is opened as text: Windows' line ends are those of everybody else.
        return text.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(field, str(path), not_utf8(error)) from None


def encodable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair.

    `json.loads` makes one of `"\\ud83d"`, which a model may write, and no UTF-8 holds it.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def not_utf8(error: UnicodeDecodeError, *, line: int | None = None) -> str:
    """The fix for text that is not UTF-8: names line and byte, and does not show the text.

    Args:
        line: of the text, where it is one line of a file; None where it is the whole file.
    """
    before = error.object[: error.start]
    at = before.count(b"\n") + 1 if line is None else line
    byte = error.start - before.rfind(b"\n")
    return f"It is not UTF-8 at line {at}, byte {byte}: save the file as UTF-8."
