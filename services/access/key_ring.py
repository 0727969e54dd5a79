"""The keys of a service, by name. A key itself is never kept, shown or logged."""

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel
from services.protocol.yaml_text import NotYaml, parse_yaml

_HIDDEN = "(not shown)"


class ApiKey(StrictModel):
    """One entry of the key file.

    Attributes:
        name: what logs and metrics call it.
        key: the key, at least 16 characters; or else
        sha256: its SHA-256 as 64 hexadecimal digits, so that the file holds no secret.
        requests_per_s: requests that may begin per second, in the long run; None: any.
        burst: requests that may begin at once; the requests of one second if left out.
        max_open_requests: requests open at a time; None: any.
    """

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    key: str | None = Field(default=None, min_length=16, repr=False)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$", repr=False)
    requests_per_s: float | None = Field(default=None, gt=0)
    burst: int | None = Field(default=None, ge=1)
    max_open_requests: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("write either key or sha256")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the key, in hexadecimal."""
        return self.sha256 or sha256((self.key or "").encode()).hexdigest()


_ENTRIES: TypeAdapter[list[ApiKey]] = TypeAdapter(Annotated[list[ApiKey], Field(min_length=1)])


class KeyRing:
    """Finds the key that a client shows.

    Attributes:
        keys: all of them, by name.
    """

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self.keys = {key.name: key for key in keys}
        self._digests = [(key.digest, key) for key in keys]

    @classmethod
    def parse(cls, text: str, *, source: str) -> Self:
        """Read a YAML list of keys; `source` is what messages call it.

        Raises:
            InvalidInput: it does not fit; the message holds no value of it.
        """
        try:
            keys = _ENTRIES.validate_python(_loaded(text, source))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in problem["loc"]) or "(whole document)"
            fix = problem["msg"].removeprefix("Value error, ")
            raise InvalidInput(f"{source}: {where}", _HIDDEN, f"{fix}.") from None
        for number, key in enumerate(keys):
            for other in keys[:number]:
                if key.name == other.name or key.digest == other.digest:
                    what = "name" if key.name == other.name else "key"
                    fix = f"{number}.{what} is that of an earlier one; every key has its own."
                    raise InvalidInput(f"{source}: {number}.{what}", _HIDDEN, fix)
        return cls(keys)

    def find(self, shown: bytes) -> ApiKey | None:
        """The key that was shown; takes as long for a wrong one as for a right one."""
        digest, found = sha256(shown).hexdigest(), None
        for known, key in self._digests:
            if hmac.compare_digest(known, digest):
                found = key
        return found


def _loaded(text: str, source: str) -> Any:
    try:
        return parse_yaml(text)
    except NotYaml as error:  # whose reason may quote a key
        raise InvalidInput(source, _HIDDEN, f"It is not valid YAML{error.where}.") from None
