"""YAML as plain data; a key that is written twice is an error.

YAML itself says so, but PyYAML keeps the last of them silently.
"""

from pathlib import Path
from typing import Any

import yaml

from services.protocol.errors import InvalidInput
from services.protocol.text_file import read_text_file


class NotYaml(ValueError):
    """Text that is no YAML.

    Attributes:
        where: such as ` at line 2, column 5`; empty if that is not known.
        why: may quote the text; empty if that is not known.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"it is not valid YAML{where}")
        self.where, self.why = where, why


def parse_yaml(text: str) -> Any:
    """The data in a text of one document.

    Raises:
        NotYaml: it is not that.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        place, why = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" at line {place.line + 1}, column {place.column + 1}" if place else ""
        raise NotYaml(where, why or "") from None
    except (ValueError, LookupError, AttributeError, RecursionError) as error:
        # Such as a date that no calendar has, `!!bool x`, or brackets without end.
        raise NotYaml("", str(error)) from None


def load_yaml(path: str | Path) -> Any:
    """Parse a YAML file into plain data.

    Raises:
        InvalidInput: the file is missing, or is not YAML in UTF-8.
    """
    text = read_text_file(path)
    try:
        return parse_yaml(text)
    except NotYaml as error:
        said = f": {error.why}" if error.why else ""
        fix = f"It is not valid YAML{error.where}{said}."
        raise InvalidInput("file", str(path), fix) from None


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)  # type: ignore[no-untyped-call]
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value} is there twice"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node
