"""Names of checks in OpenEnv's RFC 008."""

from pathlib import Path

from millrace_tools.audit.audit import CHECKS
from millrace_tools.audit.findings import RFC_008

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
OF_THE_RFC = {
    "static": "reproducible_build image_hygiene layout sbom oci_labels resource_declaration "
    "timeout_ceiling dependency_pinning task_distribution_pinning manifest",
    "runtime": "egress_denied host_containment resource_bounds episode_isolation "
    "oracle_containment reward_well_formed rubric_introspectable observation_schema "
    "state_contract trajectory_record reward_attribution tool_declaration_accuracy "
    "task_declaration_accuracy seed_control episode_determinism",
    "semantic": "resource_envelope oracle_max floor_gap canary_floor no_solution_leakage "
    "verifier_determinism verifier_portability replayability",
    "statistical": "reward_reachability difficulty_separation headroom variance_bound "
    "training_signal adversarial_floor gameability_gap",
    "hub": "layer_isolation time_to_first_work cosign_signature cross_host_determinism "
    "immutable_versioning",
}
"""All ids of "The 44-test mapping", by their levels."""


def test_every_id_of_the_rfc_is_one_that_it_has_and_stands_at_a_check_of_ours() -> None:
    known = {f"{level}.{one}" for level, several in OF_THE_RFC.items() for one in several.split()}
    assert len(known) == 45
    assert set(RFC_008.values()) <= known
    assert RFC_008.keys() <= set(CHECKS)


def test_the_signal_to_noise_of_rewards_is_the_variance_bound() -> None:
    """What the RFC calls `variance_bound` is its test 16, "Reward signal-to-noise"."""
    assert RFC_008["learnable.noise"] == "statistical.variance_bound"
    assert "learnable.signal" not in RFC_008


def test_the_page_has_them_all() -> None:
    page = PAGE.read_text()
    assert all(f"`{one}`" in page for one in {*RFC_008, *RFC_008.values()})
