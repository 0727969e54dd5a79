"""What Ray could not place is refused before anything starts."""

import pytest

from millrace_tools.capacity.capacity import Nodes, NodeType, check_capacity
from millrace_tools.capacity.demands import ResourceDemand
from services.protocol.errors import InvalidInput

HEAD = NodeType(name="head", count=1, resources={"CPU": 64})
GPUS = NodeType(name="gpus", count=2, resources={"CPU": 192, "GPU": 8})
BOTH = Nodes(types=(HEAD, GPUS))


def _demand(count, *bundles, strategy="PACK", max_count=None, surge=0):
    return ResourceDemand(
        application="a",
        deployment="a",
        owner="a.replicas",
        count=count,
        max_count=max_count or count,
        bundles=bundles,
        surge=surge,
        strategy=strategy,
    )


def _refused(*demands, nodes=BOTH):
    with pytest.raises(InvalidInput) as problem:
        check_capacity(demands, nodes, source="d.yaml")
    assert problem.value.field == "d.yaml: a.replicas"
    return problem.value


def test_what_fits_is_let_through():
    assert check_capacity([_demand(16, {"GPU": 1, "CPU": 4})], BOTH, source="d.yaml") == []


def test_a_bundle_larger_than_every_node_is_refused_even_where_all_nodes_together_have_it():
    problem = _refused(_demand(1, {"GPU": 16}))
    assert problem.value == "16 GPU"
    assert "gpus: 192 CPU, 8 GPU" in problem.fix


def test_bundles_that_must_share_a_node_are_one():
    parts = [{"GPU": 4}, {"GPU": 4}, {"GPU": 4}]
    assert check_capacity([_demand(1, *parts)], Nodes(types=(GPUS,)), source="d.yaml") == []
    assert _refused(_demand(1, *parts, strategy="STRICT_PACK")).value == "12 GPU"


def test_bundles_that_may_not_share_a_node_need_one_each():
    parts = [{"GPU": 1}, {"GPU": 1}]
    assert (
        check_capacity(
            [_demand(1, *parts, strategy="STRICT_SPREAD")], Nodes(types=(GPUS,)), source="d.yaml"
        )
        == []
    )
    three = [*parts, {"GPU": 1}]
    assert "Only 0 of them" in _refused(_demand(1, *three, strategy="STRICT_SPREAD")).fix


def test_more_than_all_nodes_have_together_is_refused_with_how_many_fit():
    problem = _refused(_demand(17, {"GPU": 1}))
    assert problem.value == 17
    assert "Only 16 of them fit" in problem.fix


def test_a_rank_and_an_engine_that_both_want_the_one_gpu_are_refused_with_the_way_to_share_it():
    one = Nodes(types=(NodeType(name="mine", count=1, resources={"CPU": 16, "GPU": 1}),))
    fix = _refused(_demand(1, {"GPU": 1}), _demand(1, {"GPU": 1}), nodes=one).fix
    assert "Ranks and engines use the same GPUs with placement: shared alone" in fix


def test_gpus_that_are_there_but_in_pieces_too_small_do_not_fit():
    demands = [_demand(2, {"GPU": 5}), _demand(2, {"GPU": 4})]
    assert "Only 0 of them fit" in _refused(*demands).fix


def test_what_asks_for_no_gpu_leaves_the_cores_of_gpu_nodes_to_those_that_do():
    demands = [_demand(4, {"CPU": 16}), _demand(16, {"CPU": 24, "GPU": 1})]
    assert check_capacity(demands, BOTH, source="d.yaml") == []


def test_a_custom_resource_keeps_a_demand_on_its_nodes():
    reward = NodeType(name="reward", count=1, resources={"CPU": 32, "reward": 1})
    nodes = Nodes(types=(HEAD, reward))
    demand = _demand(2, {"CPU": 16, "reward": 0.5})
    assert check_capacity([demand], nodes, source="d.yaml") == []
    assert "Only 2 of them" in _refused(_demand(3, {"CPU": 8, "reward": 0.5}), nodes=nodes).fix
    assert _refused(_demand(1, {"trainer": 1}), nodes=nodes).value == "1 trainer"


def test_what_serve_may_add_later_is_said_and_not_refused():
    (note,) = check_capacity([_demand(8, {"GPU": 1}, max_count=20)], BOTH, source="d.yaml")
    assert note == "a.replicas: Serve may ask for 20, of which 16 fit"


def test_replicas_that_serve_could_not_replace_are_said_and_not_refused():
    one = Nodes(types=(NodeType(name="n", count=1, resources={"CPU": 5}),))
    routers = _demand(2, {"CPU": 1}, surge=2)
    assert check_capacity([routers, _demand(1, {"CPU": 2})], one, source="d.yaml") == []
    (note,) = check_capacity([routers, _demand(1, {"CPU": 3})], one, source="d.yaml")
    assert note.startswith("a.replicas: a change would wait for ever")
    assert "1 x (1 CPU) does not fit" in note


def test_nodes_of_all_kinds_together_are_no_more_than_may_run_at_a_time():
    cpus = NodeType(name="cpus", count=3, resources={"CPU": 64}, min_count=2)
    nodes = Nodes(types=(cpus, GPUS), max_count=3)
    gpus = _demand(16, {"GPU": 1, "CPU": 4})
    assert check_capacity([gpus], Nodes(types=(cpus, GPUS), max_count=4), source="d.yaml") == []
    problem = _refused(gpus, nodes=nodes)
    assert "Only 8 of them fit" in problem.fix, "two of the three run for nothing"
    assert "2 gpus: 192 CPU, 8 GPU; at most 3 at a time" in problem.fix
    # What is left of nodes that run is used before another is asked for.
    demands = [_demand(8, {"GPU": 1, "CPU": 4}), _demand(9, {"CPU": 32})]
    assert check_capacity(demands, nodes, source="d.yaml") == []
    assert nodes.max_amount("GPU") == 8
    assert nodes.max_amount("CPU") == 64 + 64 + 192


def test_nodes_that_were_asked_for_in_vain_are_not_counted():
    nodes = Nodes(types=(GPUS,), max_count=1)
    two = _demand(1, {"GPU": 1}, {"GPU": 1}, strategy="STRICT_SPREAD", max_count=1)
    assert "Only 0 of them" in _refused(two, nodes=nodes).fix
    one = _demand(0, {"GPU": 1}, {"GPU": 1}, strategy="STRICT_SPREAD", max_count=1)
    (note,) = check_capacity([one, _demand(1, {"GPU": 1})], nodes, source="d.yaml")
    assert note == "a.replicas: Serve may ask for 1, of which 0 fit"
