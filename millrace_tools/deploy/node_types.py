"""The nodes of a running cluster, or of the cluster that a file would make."""

import json
import shlex
from collections import Counter
from math import ceil, floor
from pathlib import Path
from typing import Any

import ray

from millrace_tools.capacity.capacity import Nodes, NodeType
from millrace_tools.deploy.file_kind import KUBERNETES, RAY_UP, kind_of
from millrace_tools.deploy.ray_service import PodGroup, RayServiceFile
from services.protocol.errors import InvalidInput
from services.protocol.yaml_text import load_yaml

_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGT", start=1)}
_DETECTED = (
    "Ray finds out on the nodes what they have: check with --cluster once they run, or give "
    "each node type its `resources`."
)


def live_nodes() -> Nodes:
    """The nodes of the cluster that this process has joined, by equal resources."""
    counts: Counter[frozenset[tuple[str, float]]] = Counter(
        frozenset((k, v) for k, v in node["Resources"].items() if not k.startswith("node:"))
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    )
    return Nodes(
        types=tuple(
            NodeType(name="node", count=count, resources=dict(resources))
            for resources, count in counts.items()
        )
    )


def nodes_of_file(path: str | Path) -> Nodes:
    """The most nodes that a `ray up` file or a RayService file would make.

    Raises:
        InvalidInput: it is another file, or does not say what its nodes have.
    """
    data = load_yaml(path)
    kind = kind_of(data)
    if kind == RAY_UP:
        try:
            return _of_ray_up(data, str(path))
        except InvalidInput:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            fix = f"Its nodes are not written as `ray up` reads them: {error}."
            raise InvalidInput("--nodes", str(path), fix) from None
    if kind == KUBERNETES:
        return nodes_of_ray_service(RayServiceFile.check(data, source=str(path)))
    fix = "Give a `ray up` file such as deploy/ray/aws.yaml, or a RayService manifest."
    raise InvalidInput("--nodes", str(path), fix)


def nodes_of_ray_service(file: RayServiceFile) -> Nodes:
    """The most nodes that the file's own Ray cluster has."""
    cluster = file.manifest.spec.ray_cluster_config
    types = [_of_pods("head", 1, cluster.head_group_spec, file.source)]
    for group in cluster.worker_group_specs:
        most = max(group.replicas, group.max_replicas or 0) * group.num_of_hosts
        types.append(_of_pods(group.group_name, most, group, file.source))
    return Nodes(types=tuple(types))


def _of_ray_up(data: Any, source: str) -> Nodes:
    workers = data.get("max_workers", 2)  # Ray's own default, without the head
    if not data.get("available_node_types"):
        provider = data.get("provider", {}).get("type")
        raise InvalidInput(f"{source}: provider.type", provider, _DETECTED)
    types = []
    for name, node in data["available_node_types"].items():
        if not node.get("resources"):
            raise InvalidInput(f"{source}: available_node_types.{name}.resources", None, _DETECTED)
        head = name == data.get("head_node_type")
        most = min(node.get("max_workers", 0 if head else workers), workers)  # as Ray has it
        min_count = min(node.get("min_workers", 0), most) + head
        resources = {one: float(amount) for one, amount in node["resources"].items()}
        count = most + head
        types.append(NodeType(name=name, count=count, resources=resources, min_count=min_count))
    return Nodes(types=tuple(types), max_count=workers + 1)


def _of_pods(name: str, count: int, group: PodGroup, source: str) -> NodeType:
    """The resources that KubeRay gives Ray: `rayStartParams`, else the container's limits."""
    field = f"{source}: {name}"
    try:
        limits = group.template["spec"]["containers"][0]["resources"]["limits"]
    except (KeyError, IndexError, TypeError):
        fix = "Give its first container resources.limits with cpu and memory."
        raise InvalidInput(f"{field}.template", None, fix) from None
    given = group.ray_start_params
    resources = {
        "CPU": float(given.get("num-cpus", ceil(_quantity(limits.get("cpu", 0), field)))),
        "GPU": float(given.get("num-gpus", limits.get("nvidia.com/gpu", 0))),
        "memory": float(floor(_quantity(limits.get("memory", 0), field))),
    }
    return NodeType(name=name, count=count, resources=resources | _of_user(given, field))


def _of_user(given: dict[str, str], field: str) -> dict[str, float]:
    """Custom resources: JSON, in quotes that the shell of the pod takes off."""
    text = given.get("resources")
    if text is None:
        return {}
    try:
        (word,) = shlex.split(text)
        return {name: float(amount) for name, amount in json.loads(word).items()}
    except (ValueError, AttributeError, TypeError):
        fix = """Write it like '"{\\\\"trainer\\\\": 8}"': JSON, quoted for a shell."""
        raise InvalidInput(f"{field}.rayStartParams.resources", text, fix) from None


def _quantity(value: Any, field: str) -> float:
    """A Kubernetes quantity, such as 500m or 64Gi, as a number."""
    text = str(value)
    unit = text.lstrip("0123456789.")
    try:
        return float(text.removesuffix(unit)) * _UNITS[unit]
    except (KeyError, ValueError):
        fix = "Write a Kubernetes quantity such as 8, 500m or 64Gi."
        raise InvalidInput(f"{field}.resources.limits", value, fix) from None
