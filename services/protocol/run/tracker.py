"""Experiment trackers that get a run's figures beside its `metrics.jsonl`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from services.protocol.strict import StrictModel

LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User, password or token within an address."""


def _without_login(address: str | None) -> str | None:
    if address is not None and LOGIN.search(address):
        raise ValueError(
            "run files are kept and shown: leave user and password out, and set the tracker's own "
            "environment variables where the orchestrator runs"
        )
    return address


Address = Annotated[str | None, AfterValidator(_without_login)]


class TensorBoardTracker(StrictModel):
    """Event files.

    Attributes:
        folder: parent of a folder per run, absolute; None: `tensorboard` in the run directory.
    """

    kind: Literal["tensorboard"] = "tensorboard"
    folder: str | None = Field(default=None, pattern=r"^/")

    @property
    def address(self) -> None:
        """It has no server."""


class WandbTracker(StrictModel):
    """Weights & Biases; the key comes from the orchestrator's environment (WANDB_API_KEY).

    Attributes:
        project: made if it is not there.
        entity: user or team, None for the key's own.
        mode: `offline` writes below the run directory, for `wandb sync`.
        base_url: of a server of one's own, None for what WANDB_BASE_URL says.
    """

    kind: Literal["wandb"] = "wandb"
    project: str = Field(default="millrace", min_length=1, max_length=128)
    entity: str | None = None
    mode: Literal["online", "offline"] = "online"
    base_url: Address = Field(default=None, pattern=r"^https?://")

    @property
    def address(self) -> str | None:
        """Of the server, where the run file names one."""
        return self.base_url


class MlflowTracker(StrictModel):
    """MLflow.

    Attributes:
        uri: of the tracking server or store; None for what MLFLOW_TRACKING_URI says, else
            `mlflow.db` in the run directory.
        experiment: made if it is not there.
    """

    kind: Literal["mlflow"] = "mlflow"
    uri: Address = Field(default=None, min_length=1)
    experiment: str = Field(default="millrace", min_length=1)

    @property
    def address(self) -> str | None:
        """Of the server or store, where the run file names one."""
        return self.uri


def _named(value: Any) -> Any:
    """A name alone stands for its tracker with the defaults."""
    return {"kind": value} if isinstance(value, str) else value


TrackerConfig = Annotated[
    Annotated[TensorBoardTracker | WandbTracker | MlflowTracker, Field(discriminator="kind")],
    BeforeValidator(_named),
]
"""One entry of a run file's `trackers`."""
