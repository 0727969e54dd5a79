"""How many connections the router's process has file descriptors for."""

from services.observability.log import Log
from services.open_files import most_connections
from services.router.config import RouterConfig

_log = Log("router")


def bounded(config: RouterConfig, open_files: int) -> RouterConfig:
    """The settings with no more connections and requests than a limit of open files allows.

    A router that accepts no more than it can hold never runs out of descriptors in the middle of
    its work.
    """
    share = most_connections(open_files)
    asked = {name: getattr(config, name) for name in ("max_connections", "max_open_requests")}
    update: dict[str, object] = {name: share for name, most in asked.items() if most > share}
    if config.listen is not None and config.listen.max_connections > share:
        update["listen"] = config.listen.model_copy(update={"max_connections": share})
    if update:
        _log.warning("connections_bounded", open_files=open_files, most=share, fields=[*update])
    return config.model_copy(update=update)
