"""Audits of environments that use a sandbox."""

from pathlib import Path

from tests.audit.test_audit import ROWS, audited


def test_an_environment_gets_a_sandbox(tmp_path: Path) -> None:
    only = ["operations.failures", "reward.reproducible", "reward.failure"]
    status, found, said = audited(tmp_path, "uses_sandbox", ROWS, only=only, tasks=2)
    assert status == 0, said
    assert found["operations.failures"]["evidence"] == "0 of 2 failed", said
    assert {one["verdict"] for one in found.values()} == {"pass"}, said
