"""What Ray could not place is refused before anything starts."""

import pytest

from millrace_tools.capacity.capacity import Nodes, NodeType, check_room
from millrace_tools.capacity.claims import Claim
from services.protocol.errors import InvalidInput

HEAD = NodeType(name="head", count=1, resources={"CPU": 64})
GPUS = NodeType(name="gpus", count=2, resources={"CPU": 192, "GPU": 8})
BOTH = Nodes(types=(HEAD, GPUS))


def _claim(count, *bundles, strategy="PACK", most=None):
    return Claim(
        application="a",
        deployment="a",
        owner="a.replicas",
        count=count,
        most=most or count,
        bundles=bundles,
        strategy=strategy,
    )


def _refused(*claims, nodes=BOTH):
    with pytest.raises(InvalidInput) as problem:
        check_room(claims, nodes, source="d.yaml")
    assert problem.value.field == "d.yaml: a.replicas"
    return problem.value


def test_what_fits_is_let_through():
    assert check_room([_claim(16, {"GPU": 1, "CPU": 4})], BOTH, source="d.yaml") == []


def test_a_bundle_larger_than_every_node_is_refused_even_where_all_nodes_together_have_it():
    problem = _refused(_claim(1, {"GPU": 16}))
    assert problem.value == "16 GPU"
    assert "gpus: 192 CPU, 8 GPU" in problem.fix


def test_bundles_that_must_share_a_node_are_one():
    parts = [{"GPU": 4}, {"GPU": 4}, {"GPU": 4}]
    assert check_room([_claim(1, *parts)], Nodes(types=(GPUS,)), source="d.yaml") == []
    assert _refused(_claim(1, *parts, strategy="STRICT_PACK")).value == "12 GPU"


def test_bundles_that_may_not_share_a_node_need_one_each():
    parts = [{"GPU": 1}, {"GPU": 1}]
    assert (
        check_room(
            [_claim(1, *parts, strategy="STRICT_SPREAD")], Nodes(types=(GPUS,)), source="d.yaml"
        )
        == []
    )
    three = [*parts, {"GPU": 1}]
    assert "Only 0 of them" in _refused(_claim(1, *three, strategy="STRICT_SPREAD")).fix


def test_more_than_all_nodes_have_together_is_refused_with_how_many_have_room():
    problem = _refused(_claim(17, {"GPU": 1}))
    assert problem.value == 17
    assert "Only 16 of them have room" in problem.fix


def test_gpus_that_are_there_but_in_pieces_too_small_are_not_room():
    claims = [_claim(2, {"GPU": 5}), _claim(2, {"GPU": 4})]
    assert "Only 0 of them have room" in _refused(*claims).fix


def test_what_asks_for_no_gpu_leaves_the_cores_of_gpu_nodes_to_those_that_do():
    claims = [_claim(4, {"CPU": 16}), _claim(16, {"CPU": 24, "GPU": 1})]
    assert check_room(claims, BOTH, source="d.yaml") == []


def test_a_custom_resource_keeps_a_claim_on_its_nodes():
    reward = NodeType(name="reward", count=1, resources={"CPU": 32, "reward": 1})
    nodes = Nodes(types=(HEAD, reward))
    claim = _claim(2, {"CPU": 16, "reward": 0.5})
    assert check_room([claim], nodes, source="d.yaml") == []
    assert "Only 2 of them" in _refused(_claim(3, {"CPU": 8, "reward": 0.5}), nodes=nodes).fix
    assert _refused(_claim(1, {"trainer": 1}), nodes=nodes).value == "1 trainer"


def test_what_serve_may_add_later_is_said_and_not_refused():
    (note,) = check_room([_claim(8, {"GPU": 1}, most=20)], BOTH, source="d.yaml")
    assert note == "a.replicas: Serve may ask for 20, of which 16 have room"


def test_nodes_of_all_kinds_together_are_no_more_than_may_run_at_a_time():
    cpus = NodeType(name="cpus", count=3, resources={"CPU": 64}, always=2)
    nodes = Nodes(types=(cpus, GPUS), most=3)
    gpus = _claim(16, {"GPU": 1, "CPU": 4})
    assert check_room([gpus], Nodes(types=(cpus, GPUS), most=4), source="d.yaml") == []
    problem = _refused(gpus, nodes=nodes)
    assert "Only 8 of them have room" in problem.fix, "two of the three run for nothing"
    assert "2 gpus: 192 CPU, 8 GPU; at most 3 at a time" in problem.fix
    # What is left of nodes that run is used before another is asked for.
    claims = [_claim(8, {"GPU": 1, "CPU": 4}), _claim(9, {"CPU": 32})]
    assert check_room(claims, nodes, source="d.yaml") == []
    assert nodes.most_of("GPU") == 8
    assert nodes.most_of("CPU") == 64 + 64 + 192


def test_nodes_that_were_asked_for_in_vain_are_not_counted():
    nodes = Nodes(types=(GPUS,), most=1)
    two = _claim(1, {"GPU": 1}, {"GPU": 1}, strategy="STRICT_SPREAD", most=1)
    assert "Only 0 of them" in _refused(two, nodes=nodes).fix
    one = _claim(0, {"GPU": 1}, {"GPU": 1}, strategy="STRICT_SPREAD", most=1)
    (note,) = check_room([one, _claim(1, {"GPU": 1})], nodes, source="d.yaml")
    assert note == "a.replicas: Serve may ask for 1, of which 0 have room"
