"""A command that has joined a cluster writes its own output, and nothing of Ray's, to stdout."""

import pytest
from ray._private import worker

from millrace_tools.client.joined_cluster import messages_to_stderr


def test_warnings_of_the_cluster_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    # What listens to them calls it by this name.
    assert "print_to_stdstream" in worker.listen_error_messages.__code__.co_names
    warning = {"lines": ["many workers"], "pid": "raylet", "is_err": False}
    with messages_to_stderr():
        worker.print_to_stdstream(warning, ignore_prefix=False)
    out, err = capsys.readouterr()
    assert "many workers" in err
    assert out == ""
