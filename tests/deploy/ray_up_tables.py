"""The `ray up` files, and their tables of what each deployment file needs."""

import re
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(path.name for path in (DEPLOY / "ray").glob("*.yaml"))
SEVERAL, ONE = ["aws.yaml", "gcp.yaml"], ["aws-1-node.yaml", "gcp-1-node.yaml"]
FOR_GPUS = sorted(
    str(path.relative_to(DEPLOY.parent))
    for path in [*DEPLOY.glob("cluster*.yaml"), *DEPLOY.glob("sizes/*.yaml")]
    if not path.name.endswith(".run.yaml")
)


def load(name: str) -> dict[str, Any]:
    """A file of deploy/ray."""
    return yaml.safe_load((DEPLOY / "ray" / name).read_text())


def table(name: str) -> dict[str, dict[str, str]]:
    """What the file says that each deployment file needs of it: a row of its table by column."""
    text = (DEPLOY / "ray" / name).read_text()
    (columns,) = re.findall(r"^# For +(.*)$", text, re.MULTILINE)
    rows = re.findall(r"^#   (deploy/\S+\.yaml) +(.*)$", text, re.MULTILINE)
    # Behind the last column a row may have a remark.
    return {file: dict(zip(columns.split(), cells.split(), strict=False)) for file, cells in rows}


def with_row(name: str, row: dict[str, str]) -> dict[str, Any]:
    """The file with the values of a row in it."""
    cluster = load(name)
    types = cluster["available_node_types"]
    if name in SEVERAL:
        for kind, count in row.items():
            types[kind] |= {"min_workers": int(count), "max_workers": int(count)}
        cluster["max_workers"] = sum(map(int, row.values()))
    else:
        types["head"]["resources"] = {"CPU": int(row["CPU"]), "GPU": int(row["GPU"])}
    return cluster


def declared(provider: str, file: str) -> list[dict[str, float]]:
    """The resources of every node that a deployment file gets at a provider, the head's first."""
    (name,) = (n for n in (*SEVERAL, *ONE) if n.startswith(provider) and file in table(n))
    cluster = with_row(name, table(name)[file])
    types = dict(cluster["available_node_types"])
    head = types.pop(cluster["head_node_type"])
    workers = [one for one in types.values() for _ in range(one["min_workers"])]
    return [dict(one["resources"]) for one in (head, *workers)]
