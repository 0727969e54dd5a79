"""API keys of a service: by name, with their limits, from a file that may change.

A key itself is never kept, shown or logged.
"""

import asyncio
import hmac
import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from services.access.config import AccessConfig
from services.http.api_key import key_in
from services.observability.log import Log
from services.observability.metrics import AccessMetrics
from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel
from services.protocol.yaml_text import NotYaml, parse_yaml

Excess = Literal["rate_limited", "too_many_open"]
_HIDDEN = "(not shown)"


class ApiKey(StrictModel):
    """One entry of the key file.

    Attributes:
        name: what logs and metrics call it.
        key: the key, at least 16 characters; either this or `sha256`.
        sha256: the key's SHA-256 as 64 hexadecimal digits, so that the file holds no secret.
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


class KeyLimits:
    """Counts the requests of one key; `now` is a reading of one monotonic clock, seconds.

    Attributes:
        key: its limits; they may be replaced at any time.
        open: requests open now.
    """

    def __init__(self, key: ApiKey, *, now: float) -> None:
        self.key, self.open = key, 0
        self._left, self._at = float(self._burst), now

    def admit(self, now: float) -> tuple[Excess, float] | None:
        """Count a request as open, or say what it is too much of and for how long, seconds."""
        most = self.key.max_open_requests
        if most is not None and self.open >= most:
            return "too_many_open", 1.0
        rate = self.key.requests_per_s
        if rate is not None:
            self._left = min(self._left + (now - self._at) * rate, float(self._burst))
            self._at = now
            if self._left < 1.0:
                return "rate_limited", (1.0 - self._left) / rate
            self._left -= 1.0
        self.open += 1
        return None

    def release(self) -> None:
        """A request that was admitted is over."""
        self.open -= 1

    @property
    def _burst(self) -> int:
        return self.key.burst or max(1, math.ceil(self.key.requests_per_s or 1))


class KeySource:
    """Reads the keys, and reads them again when their file changes.

    Args:
        config: where they are.
        service: what logs, metrics and messages call the service.
    """

    def __init__(self, config: AccessConfig, *, service: str) -> None:
        self._config, self._service = config, service
        self._log = Log(service)
        self._text: str | None = None

    def read(self) -> KeyRing | None:
        """The keys as they are now, None where none are configured.

        Raises:
            InvalidInput: they cannot be read.
        """
        if not self._config.has_keys:
            return None
        text, source = self._found()
        ring = KeyRing.parse(text, source=source)
        self._text = text
        return ring

    async def follow(self, changed: Callable[[KeyRing], None]) -> None:
        """Call `changed` with the keys whenever their file has others; runs until cancelled.

        A file that cannot be used changes nothing: the keys before it go on.
        """
        if self._config.api_keys_file is None:
            return
        complaint = ""
        while True:
            await asyncio.sleep(self._config.reread_s)
            try:
                text, source = await asyncio.to_thread(self._found)
                if text != self._text:
                    changed(KeyRing.parse(text, source=source))
                    self._text = text
                    self._log.info("api_keys_reread", file=source)
                complaint = ""
            except InvalidInput as problem:
                complaint = self._complain(str(problem), before=complaint)
            except Exception as error:  # noqa: BLE001  the loop's outer edge
                # Without this, keys taken away would stay good. Its text may hold some of the file.
                complaint = self._complain(type(error).__name__, before=complaint)

    def _complain(self, reason: str, *, before: str) -> str:
        AccessMetrics.reread_failures.inc(tags={"service": self._service})
        if reason != before:
            self._log.warning("api_keys_unusable", reason=reason)
        return reason

    def _found(self) -> tuple[str, str]:
        file, variable = self._config.api_keys_file, self._config.api_keys_env
        if file is None:
            text = key_in(variable, field=f"{self._service}.access.api_keys_env")
            return text or "", f"${variable}"
        try:
            return Path(file).read_text(encoding="utf-8"), file
        except (OSError, UnicodeDecodeError) as error:
            field = f"{self._service}.access.api_keys_file"
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InvalidInput(field, file, f"It cannot be read: {why}.") from None
