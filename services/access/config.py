"""Who may use a service over HTTP."""

import ipaddress
from typing import Self

from pydantic import Field, model_validator

from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel


class AccessConfig(StrictModel):
    """Keys of a service's HTTP address.

    Without keys everybody is let in, which a service refuses unless Serve listens on this
    machine only or `allow_unauthenticated` says that it is meant.

    Attributes:
        api_keys_file: YAML file with the keys, on every node that runs the service; see
            `services.access.api_keys`. It is read again when it changes.
        api_keys_env: environment variable with the same text, instead of a file.
        allow_unauthenticated: serve without keys wherever Serve listens, because something in
            front of it authenticates.
        reread_s: how often the file is looked at, seconds.
    """

    api_keys_file: str | None = None
    api_keys_env: str | None = None
    allow_unauthenticated: bool = False
    reread_s: float = Field(default=5.0, gt=0)

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed."""
        return self.api_keys_file is not None or self.api_keys_env is not None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.api_keys_file is not None and self.api_keys_env is not None:
            raise ValueError("leave out api_keys_file or api_keys_env")
        if self.has_keys and self.allow_unauthenticated:
            raise ValueError("there are keys, so leave out allow_unauthenticated")
        return self

    def check(self, host: str | None, *, service: str) -> None:
        """Refuse to let everybody in where Serve listens, if others reach that.

        Args:
            host: where Serve's HTTP proxies listen, None for nowhere.
            service: what messages call the service.

        Raises:
            InvalidInput: there are no keys, and that is not said to be meant.
        """
        if self.has_keys or self.allow_unauthenticated or host is None or _is_loopback(host):
            return
        fix = (
            f"Serve listens on {host} (http_options.host), so others reach it: name a file of "
            "keys, or listen on 127.0.0.1, or, where something in front authenticates, set "
            "allow_unauthenticated: true."
        )
        raise InvalidInput(f"{service}.access.api_keys_file", None, fix)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
