"""Where the keys come from: a file that may change, or an environment variable."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from services.access.config import AccessConfig
from services.access.key_ring import KeyRing
from services.observability.log import Log
from services.observability.metrics import AccessMetrics
from services.protocol.errors import InvalidInput


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
            text = os.environ.get(variable or "", "")
            if not text:
                field = f"{self._service}.access.api_keys_env"
                fix = "Set that variable where the service runs."
                raise InvalidInput(field, variable, fix)
            return text, f"${variable}"
        try:
            return Path(file).read_text(encoding="utf-8"), file
        except (OSError, UnicodeDecodeError) as error:
            field = f"{self._service}.access.api_keys_file"
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InvalidInput(field, file, f"It cannot be read: {why}.") from None
