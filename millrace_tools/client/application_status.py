"""The status of a Serve application; light enough for commands that never load Ray."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ApplicationStatus:
    """An application as Serve reports it, or as it looks over HTTP.

    Attributes:
        status: `NOT_STARTED`, `DEPLOYING`, `RUNNING`, `DEPLOY_FAILED`, `UNHEALTHY`, ...
        running: replicas that are up.
        message: why it is not running.
    """

    name: str
    status: str
    running: int = 0
    message: str = ""

    @property
    def failed(self) -> bool:
        """It will not come up by itself."""
        return self.status in ("DEPLOY_FAILED", "DELETING")
