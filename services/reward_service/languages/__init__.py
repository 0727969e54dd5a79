"""The language table. A language is one file here that defines `LANGUAGES`."""

import importlib
import pkgutil
from functools import cache

from services.reward_service.languages.language import Language

__all__ = ["Language", "languages"]


@cache
def languages() -> dict[str, Language]:
    """Every language by its name."""
    found: dict[str, Language] = {}
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        for language in getattr(module, "LANGUAGES", ()):
            assert language.name not in found, f"two languages are named {language.name}"
            found[language.name] = language
    return found
