"""Which file system a path is on, by a table of mounts."""

from pathlib import Path

import pytest

from services import file_system
from services.file_system import FileSystem
from tests.mounts import pretend_mounts

# A container whose /data is a folder of the host, with a share below it.
CONTAINER = """\
600 500 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
601 600 8:1 /srv/data /data rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
602 601 0:61 / /data/runs rw,relatime shared:9 master:2 - nfs4 10.0.0.1:/runs rw,vers=4.2,hard
603 601 0:62 / /data/my\\040runs rw,relatime - fuse.sshfs me@host:/a\\040b rw,user_id=0
604 602 0:63 / /data/runs/quick rw,relatime - autofs systemd-1 rw,fd=45
605 604 0:64 / /data/runs/quick rw,relatime - xfs /dev/sdb rw
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(CONTAINER)
    monkeypatch.setattr(file_system, "MOUNTS", mounts)


@pytest.mark.usefixtures("container")
@pytest.mark.parametrize(
    ("path", "mount", "kind", "network"),
    [
        ("/somewhere/else", "/", "overlay", False),
        ("/data", "/data", "ext4", False),
        ("/data/runs-of-mine", "/data", "ext4", False),
        ("/data/runs", "/data/runs", "nfs4", True),
        ("/data/runs/a/b", "/data/runs", "nfs4", True),
        ("/data/runs/a/../../x", "/data", "ext4", False),
        ("/data/my runs/a", "/data/my runs", "fuse.sshfs", True),
        ("/data/runs/quick/a", "/data/runs/quick", "xfs", False),
    ],
)
def test_a_path_is_on_the_deepest_and_last_mount_above_it(
    path: str, mount: str, kind: str, network: bool
) -> None:
    found = FileSystem.of(path)
    assert (found.mount, found.kind, found.network) == (mount, kind, network)


def test_a_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to("share")
    mounts = ("/ ext4 rw", f"{tmp_path}/share cifs rw")
    pretend_mounts(monkeypatch, tmp_path / "mountinfo", *mounts)
    assert FileSystem.of(tmp_path / "link" / "run").kind == "cifs"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.s3fs", "lustre", "gpfs", "ceph", "9p", "newfs"]
)
def test_what_is_not_known_to_be_local_counts_as_a_network(kind: str) -> None:
    assert FileSystem(kind=kind).network


def test_without_a_table_of_mounts_the_kind_is_unknown_and_counts_as_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system, "MOUNTS", tmp_path / "none")
    assert FileSystem.of(tmp_path) == FileSystem(kind="unknown")
    assert FileSystem.of(tmp_path).network


def test_this_machine_has_a_table_that_can_be_read(tmp_path: Path) -> None:
    assert FileSystem.of(tmp_path).kind != "unknown"
    assert FileSystem.of("/proc/self").kind == "proc"


def test_options_tell_when_locks_stay_on_one_host() -> None:
    shared = FileSystem(kind="nfs", options=frozenset({"rw", "local_lock=none"}))
    own = FileSystem(kind="nfs", options=frozenset({"rw", "nolock", "local_lock=all"}))
    assert not shared.locks_of_one_host
    assert own.locks_of_one_host == "local_lock=all"
