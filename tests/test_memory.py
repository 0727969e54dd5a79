"""Free memory, of a machine and of a container."""

from pathlib import Path

from services.memory import free_memory


def test_a_containers_own_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2500\ninactive_file 400\n")
    assert free_memory(tmp_path) == 1400
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 1400
    assert free_memory(tmp_path / "none") > 1400
