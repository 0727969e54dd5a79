"""Configuration of the page as a service."""

from pydantic import Field

from services.access.config import AccessConfig
from services.protocol.strict import StrictModel


class PageConfig(StrictModel):
    """Settings of the page in a cluster.

    Attributes:
        access: who may see runs. The files of the page itself need no key: they ask for it.
        num_cpus: processors Ray reserves for it.
        router_url: where router and orchestrator answer, without a path; None: at this node's
            own Serve proxy.
        router_key_env: environment variable with the API key that is shown to them, None where
            they ask for none.
        look_s: how often the cluster is asked, seconds.
    """

    access: AccessConfig = AccessConfig()
    num_cpus: float = Field(default=0.1, ge=0)
    router_url: str | None = Field(default=None, pattern=r"^https?://[^/]+$")
    router_key_env: str | None = None
    look_s: float = Field(default=2.0, gt=0)
