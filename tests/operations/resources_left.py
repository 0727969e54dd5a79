"""Prints what every node of the cluster has, and what of it is free, as a line of JSON."""

import json
import sys

import ray
from ray._private.state import available_resources_per_node

ray.init(address=sys.argv[1], log_to_driver=False)
free = available_resources_per_node()
nodes = {
    node["NodeManagerAddress"]: {"all": node["Resources"], "free": free.get(node["NodeID"], {})}
    for node in ray.nodes()  # type: ignore[no-untyped-call]
}
print(json.dumps(nodes))
