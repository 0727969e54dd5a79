"""A real Prometheus that scrapes one cluster, with the rules that Millrace ships."""

import json
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import ray
import yaml
from ray._private.metrics_agent import PrometheusServiceDiscoveryWriter

from millrace_tools.capacity.machine import free_port
from tests.cluster.conftest import ROOT

SHIPPED = ROOT / "deploy" / "prometheus"
READY_S = 60.0


class Prometheus:
    """A context manager; `folder` keeps its configuration, data and log.

    The configuration is the shipped one, but that it finds Ray's list of its nodes, which Ray
    writes with its dashboard alone, in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{free_port()}", timeout=30)

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._configuration()))
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._client.base_url.host}:{self._client.base_url.port}",
            "--log.level=warn",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait_for(self._ready, "Prometheus", timeout_s=READY_S)
        return self

    def _configuration(self) -> dict[str, Any]:
        content: dict[str, Any] = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
        content["rule_files"] = [str(SHIPPED / "rules" / "*.yml")]
        (job,) = content["scrape_configs"]
        nodes = self._folder / "nodes.json"
        nodes.write_text(json.dumps(nodes_as_ray_lists_them(self._folder)))
        job["file_sd_configs"][0]["files"] = [str(nodes)]
        return content

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._client.close()
        self._process.terminate()
        self._process.wait(timeout=30)

    def ask(self, path: str, **parameters: str) -> Any:
        """What the HTTP API says; an error of the query fails the test."""
        answer = self._client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def has_data(self, expression: str) -> bool:
        """Whether a query has a finite value now."""
        result = self.ask("query", query=expression)["result"]
        return any(math.isfinite(float(series["value"][1])) for series in result)

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and, of an alert, its state."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def wait_for(self, true: Callable[[], bool], what: object, *, timeout_s: float) -> None:
        """Ask until it is so; `what` is said as it is when it is too late."""
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}"
            time.sleep(0.5)


def nodes_as_ray_lists_them(folder: Path) -> list[dict[str, Any]]:
    """What Ray, with its dashboard, writes to prom_metrics_service_discovery.json."""
    writer = PrometheusServiceDiscoveryWriter(
        ray.get_runtime_context().gcs_address, str(folder), str(folder)
    )
    content: list[dict[str, Any]] = json.loads(
        writer.get_file_discovery_content()  # type: ignore[no-untyped-call]
    )
    return content
