"""Test sets that replicas on one machine share."""

import hashlib
from pathlib import Path

import pytest

from services.reward_service.config import RewardServiceConfig
from services.reward_service.grading.tools import Tools


def test_a_replica_has_the_test_sets_that_another_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    several = RewardServiceConfig(max_replicas=2)
    text = b'[{"stdin": "1 2", "expected": "3"}]'
    name = hashlib.sha256(text).hexdigest()
    one, other = (Tools(several).test_sets for _ in range(2))
    assert one.put(name, text) == 1
    found = other.get(name)
    assert found is not None
    assert found[0].stdin == "1 2"
    (folder,) = tmp_path.rglob("test-sets")
    assert folder.stat().st_mode & 0o077 == 0
    (folder / f"{name}.json").write_bytes(b"[]")
    assert Tools(several).test_sets.get(name) is None
    assert RewardServiceConfig().test_set_folder is None
