"""`/tokenizer_info` is a replica's, if its deployment has it tell."""

import pytest

from tests.router.conftest import MODEL


@pytest.mark.parametrize("query", ["", f"?model={MODEL}"])
async def test_a_replica_tells_of_its_tokenizer(cluster, query):
    await cluster.start(replicas=1)
    cluster.replicas[0].tokenizer = {"tokenizer_class": "Bytes"}
    told = await cluster.http.get(f"{cluster.url}/tokenizer_info{query}")
    assert (told.status_code, told.json()) == (200, {"tokenizer_class": "Bytes"})


async def test_replicas_that_do_not_tell_are_refused_with_the_switch(cluster):
    await cluster.start(replicas=1)
    refused = await cluster.http.get(f"{cluster.url}/tokenizer_info")
    assert refused.status_code == 404
    assert "enable_tokenizer_info_endpoint: true" in refused.json()["error"]["message"]


async def test_a_model_that_is_not_served_has_no_tokenizer(cluster):
    await cluster.start(replicas=1)
    refused = await cluster.http.get(f"{cluster.url}/tokenizer_info?model=nobody")
    assert refused.status_code == 404
    assert "nobody" in refused.json()["error"]["message"]
