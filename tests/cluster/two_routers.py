"""Two routers under Serve, in a cluster of their own; started by test_under_haproxy.

Takes the port and the router's settings as JSON, and ends when its standard input does.
"""

import json
import sys

from ray import serve
from ray.serve.config import HTTPOptions

from services.cli.private_cluster import PrivateCluster
from services.router.app import build
from services.router.config import RouterConfig

if __name__ == "__main__":
    with PrivateCluster(num_cpus=1) as cluster:
        cluster.start()
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(sys.argv[1])))
        serve.run(build(RouterConfig.model_validate(json.loads(sys.argv[2]))), name="router")
        print("up", flush=True)
        sys.stdin.read()
