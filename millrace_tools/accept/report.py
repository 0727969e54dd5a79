"""The report of an acceptance: what `accept.json` holds."""

from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator

from services.page.reading.comparison.figure_text import number
from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel, first_problem


class Verdict(StrEnum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class Figure(StrictModel):
    """A measurement, or a fact such as a version.

    Attributes:
        unit: of a number; empty for text and counts.
    """

    name: str
    value: float | str
    unit: str = ""

    @field_validator("value")
    @classmethod
    def _as_exact_as_it_is(cls, value: float | str) -> float | str:
        """No measurement here is good for more than four digits; counts are whole."""
        if isinstance(value, str) or value.is_integer():
            return value
        return float(f"{value:.4g}")

    @property
    def text(self) -> str:
        """For people, such as `speed 1,520 tokens/s`."""
        value = self.value if isinstance(self.value, str) else number(self.value)
        return " ".join(filter(None, (self.name, value, self.unit)))


class Curve(StrictModel):
    """Values of a learning curve.

    Attributes:
        title: what they are.
        x: train steps.
        y: a value for each.
    """

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]


class StageReport(StrictModel):
    """One stage.

    Attributes:
        name: as `--stage` takes it.
        purpose: what it shows.
        verdict: how it ended.
        seconds: how long it took.
        reason: one line: why it failed or was not tried; empty where it passed.
        figures: what it measured, as far as it got.
        curves: learning curves.
    """

    name: str
    purpose: str
    verdict: Verdict
    seconds: float = Field(ge=0)
    reason: str = ""
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()


class Hardware(StrictModel):
    """The machine, without names or paths: the report may be sent to others.

    Attributes:
        cpu: model name of the processor.
        cores: that this process may use.
        memory_gib: of the machine.
        gpus: name of each GPU.
        gpu_gib: memory of the smallest GPU, None without any.
        driver: of the GPUs, empty without any.
        system: kernel and its version, without a distributor's suffix.
    """

    cpu: str
    cores: int
    memory_gib: float
    gpus: tuple[str, ...] = ()
    gpu_gib: float | None = None
    driver: str = ""
    system: str

    @property
    def text(self) -> str:
        """For people, such as `no GPU; 2 cores, 24 GiB; Xeon`."""
        devices = f"{len(self.gpus)} x {self.gpus[0]}" if self.gpus else "no GPU"
        return f"{devices}; {self.cores} cores, {self.memory_gib:g} GiB; {self.cpu}"


class Report(StrictModel):
    """A whole acceptance.

    Attributes:
        schema_version: of this file; another number is another shape.
        millrace: version of the package.
        made_at: UTC, such as `2026-01-31 12:00`.
        quick: stages were shortened, and the model was not asked to learn.
        hardware: the machine.
        stages: in the order in which they ran; those that were not asked for are absent.
    """

    schema_version: Literal[1] = 1
    millrace: str
    made_at: str
    quick: bool
    hardware: Hardware
    stages: tuple[StageReport, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a report.

        Raises:
            InvalidInput: there is none, or it is of another shape.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            fix = f"It cannot be read: {error.strerror}."
            raise InvalidInput("report", str(path), fix) from None
        except ValidationError as error:
            raise first_problem(error, str(path), cls) from None

    @property
    def text(self) -> str:
        """As it is written."""
        return self.model_dump_json(indent=1) + "\n"

    def count(self, verdict: Verdict) -> int:
        """Stages with this verdict."""
        return sum(one.verdict is verdict for one in self.stages)

    @property
    def failed(self) -> tuple[StageReport, ...]:
        """Stages that failed."""
        return tuple(one for one in self.stages if one.verdict is Verdict.FAILED)
