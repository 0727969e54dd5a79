"""One real cluster whose engines and ranks share devices; on CPUs these are shares of the cores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster, model_dir, started_cluster

__all__ = ["model_dir"]


@pytest.fixture(scope="package")
def running_cluster(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("shared")
    with started_cluster(model_dir, folder, placement="shared") as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """The cluster with all its replicas back, whatever the test before did to them."""
    running_cluster.wait_until_whole()
    return running_cluster
