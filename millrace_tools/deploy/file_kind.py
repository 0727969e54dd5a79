"""The kinds of YAML files in a project, to name a mix-up of two."""

from typing import Any

from services.protocol.errors import InvalidInput

SERVE, RUN, RAY_UP, KUBERNETES = "Serve", "run", "ray up", "Kubernetes"
_KINDS = {
    # kind: top-level keys by which it is known, what it is, what it is for
    SERVE: (("applications",), "a Serve file", "deploy it with `serve run {}`"),
    RUN: (("task_file", "batch_groups"), "a run file", "start it with `millrace run {}`"),
    RAY_UP: (
        ("cluster_name", "available_node_types", "provider"),
        "a `ray up` file",
        "it makes the nodes: `ray up {}`",
    ),
    KUBERNETES: (("apiVersion", "kind"), "a Kubernetes file", "`kubectl apply -f {}`"),
}


def refuse_other_kind(data: Any, wanted: str, path: str) -> None:
    """Do nothing where `data` is the wanted kind of file or of no kind that is known.

    Raises:
        InvalidInput: it is another kind; says which and what that is for.
    """
    found = kind_of(data)
    if found is None or found == wanted:
        return
    _, what, use = _KINDS[found]
    fix = f"This is {what}, not {_KINDS[wanted][1]}: {use.format(path)}."
    raise InvalidInput("file", path, fix)


def kind_of(data: Any) -> str | None:
    """The kind of a file's content, None if no key tells it."""
    found = data.keys() if isinstance(data, dict) else ()
    return next((kind for kind, (keys, *_) in _KINDS.items() if {*keys} & {*found}), None)
