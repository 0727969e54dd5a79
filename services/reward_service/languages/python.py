"""Python: the fork server's own interpreter, so a run is a fork and no start."""

from services.reward_service.languages.language import Language

LANGUAGES = (Language(name="python", tags=("python", "py", "python3"), suffixes=(".py",)),)
