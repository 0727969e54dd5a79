"""Two routers under Serve, in a cluster of their own; started by test_several_routers.

Takes the routers' settings as JSON lines on its standard input, the first to begin with; deploys
those of each line and answers `up` when they run. Ends with its standard input.
"""

import json
import sys

from ray import serve
from ray.serve.config import HTTPOptions

from millrace_tools.capacity.machine import free_port
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.router.app import build
from services.router.config import RouterConfig

if __name__ == "__main__":
    with PrivateCluster(num_cpus=1) as cluster:
        cluster.start()
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=free_port()))
        for line in sys.stdin:
            serve.run(build(RouterConfig.model_validate(json.loads(line))), name="router")
            print("up", flush=True)
