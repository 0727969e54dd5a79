"""Jobs of every ending, in Python and C++, each with the verdict that it must get."""

import random
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from services.protocol.reward.grader import AnyGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.protocol.yaml_text import load_yaml


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Answers of one ending; see reward_jobs.yaml."""

    completion: str
    grader: AnyGrader
    verdict: Verdict
    weight: float
    mark: str = ""


_FILE = Path(__file__).with_name("reward_jobs.yaml")
KINDS = TypeAdapter(dict[str, Kind]).validate_python(load_yaml(_FILE)["kinds"])


def draw(random_: random.Random, number: int) -> tuple[str, ScoreJob]:
    """A job of a random kind, and which."""
    (name,) = random_.choices(list(KINDS), [kind.weight for kind in KINDS.values()])
    kind = KINDS[name]
    completion = f"{kind.completion}\n{kind.mark} {number}\n" if kind.mark else kind.completion
    return name, ScoreJob(job_id=str(number), completion=completion, grader=kind.grader)
