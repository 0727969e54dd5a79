"""The HTTP API of workspaces, with real jails behind it."""

import asyncio
import io
import json
import tarfile
import zipfile
from typing import Any

import httpx
import pytest

from services.reward_service.workspace_api.peer_listener import PREFIX
from tests.reward_service.workspace_api.conftest import Replica, opened, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_session_opens_runs_looks_and_closes(replica: Replica) -> None:
    http = replica.http
    made = await http.post(PREFIX, json={"files": {"in/a.txt": "hello"}})
    assert made.status_code == 201, made.text
    state = made.json()
    assert state["id"].startswith(f"{replica.name}-")
    path = f"{PREFIX}/{state['id']}"
    ran = (
        await http.post(f"{path}/exec", json={"shell": "cat in/a.txt; cat; exit 3", "stdin": "you"})
    ).json()
    assert (ran["status"], ran["exit_code"], ran["stdout"]) == ("failed", 3, "helloyou")
    assert (await http.post(f"{path}/python", json={"code": "x = 41"})).json()["status"] == "ok"
    cell = (await http.post(f"{path}/python", json={"code": "x + 1"})).json()
    assert (cell["result"], cell["interpreter_restarted"]) == ("42", False)
    assert (await http.get(path)).json()["calls"] == 4
    assert [one["id"] for one in (await http.get(PREFIX)).json()].count(state["id"]) == 1
    assert (await http.delete(path)).json() == {"id": state["id"], "reason": "closed"}
    gone = await http.get(path)
    assert (gone.status_code, gone.json()["error"]["reason"]) == (410, "closed")


async def test_the_collection_is_found_with_and_without_a_slash(replica: Replica) -> None:
    made = await replica.http.post(f"{PREFIX}/", json={})
    assert made.status_code == 201
    for path in (PREFIX, f"{PREFIX}/"):
        assert made.json()["id"] in {one["id"] for one in (await replica.http.get(path)).json()}
    await replica.http.delete(f"{PREFIX}/{made.json()['id']}")


async def test_files_go_in_and_out_and_a_folder_comes_as_a_tar(replica: Replica) -> None:
    http = replica.http
    path = await opened(http)
    put = await http.put(f"{path}/files/a/b%20c.sh?mode=755", content=b"#!/bin/sh\necho \xff")
    assert put.json() == {"path": "a/b c.sh", "bytes": 16}
    got = await http.get(f"{path}/files/a/b%20c.sh")
    assert (got.status_code, got.content) == (200, b"#!/bin/sh\necho \xff")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-disposition"] == "attachment"
    (entry,) = (await http.get(f"{path}/list?path=a")).json()
    assert (entry["path"], entry["kind"], entry["mode"] & 0o111) == ("a/b c.sh", "file", 0o111)
    folder = await http.get(f"{path}/files/a")
    assert folder.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(folder.content)) as tar:
        assert any(name.endswith("b c.sh") for name in tar.getnames())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("deep/er.txt", "x")
    put = await http.put(f"{path}/files/into?archive=zip", content=packed.getvalue())
    assert put.status_code == 200, put.text
    assert (await http.get(f"{path}/files/into/deep/er.txt")).content == b"x"
    assert (await http.delete(f"{path}/files/a")).status_code == 200
    missing = await http.get(f"{path}/files/a")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "path")
    await http.delete(path)


async def events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    answer = await http.post(path, json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    assert answer.text.endswith("\n\n")
    return [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n")[:-1]]


async def test_a_stream_has_the_output_as_it_comes_and_ends_with_the_result(
    replica: Replica,
) -> None:
    http = replica.http
    path = await opened(http)
    came = await events(http, f"{path}/exec", {"shell": "echo out; echo ert >&2; printf '\\303'"})
    result = came[-1]["result"]
    assert (result["status"], result["stderr"]) == ("ok", "ert\n")
    assert "".join(one.get("stdout", "") for one in came) == result["stdout"] == "out\n\ufffd"
    came = await events(http, f"{path}/python", {"code": "print('hi')\n6 * 7"})
    assert came[0] == {"stdout": "hi\n"}
    assert came[-1]["result"]["result"] == "42"
    await http.delete(path)


async def test_output_without_end_ends_in_its_limit_streamed_or_not(replica: Replica) -> None:
    http = replica.http
    path = await opened(http)
    endless = {"shell": "yes", "output_kb": 4}
    whole = (await http.post(f"{path}/exec", json=endless)).json()
    assert whole["status"] == "output_limit"
    assert len(whole["stdout"]) <= 4096
    came = await events(http, f"{path}/exec", endless)
    assert came[-1]["result"]["status"] == "output_limit"
    assert sum(len(one.get("stdout", "")) for one in came) <= 4096 + 65536
    await http.delete(path)


async def test_a_client_that_leaves_ends_its_call(replica: Replica) -> None:
    http = replica.http
    path = await opened(http)
    call = asyncio.create_task(
        http.post(f"{path}/exec", json={"shell": "touch here; sleep 600", "wall_s": 900})
    )
    workspace = replica.workspaces.find(path.rpartition("/")[2], owner="")
    await until(lambda: workspace.calls == 1)
    call.cancel()
    await asyncio.wait([call])
    after = await http.post(f"{path}/exec", json={"shell": "echo still"})
    assert after.json()["stdout"] == "still\n"
    await http.delete(path)


async def test_another_keys_workspace_is_unknown_in_the_same_words(replica: Replica) -> None:
    http = replica.http
    mine = await opened(http)
    stranger = {"x-key": "mallory"}
    made_up = f"{PREFIX}/{replica.name}-{'0' * 32}"
    for method, rest, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/exec", {"shell": "id"}),
        ("POST", "/python", {"code": "1"}),
        ("GET", "/files/a", None),
        ("PUT", "/files/a", None),
        ("GET", "/list", None),
        ("POST", "/snapshot", None),
        ("POST", "/fork", {"n": 1}),
        ("POST", "/grade", {"tests": [{"argv": ["true"], "expected": ""}]}),
    ):
        said = []
        for path in (mine, made_up):
            answer = await http.request(method, path + rest, json=body, headers=stranger)
            assert answer.status_code == 404, (method, rest, answer.text)
            said.append(answer.text.replace(path.rpartition("/")[2], "ID"))
        assert said[0] == said[1], "whether another one has it is not told"
    assert (await http.get(PREFIX, headers=stranger)).json() == []
    assert (await http.get(mine)).status_code == 200
    await http.delete(mine)


async def test_a_snapshot_begins_others_and_a_fork_has_the_variables(replica: Replica) -> None:
    http = replica.http
    path = await opened(http, files={"a": "1"})
    await http.post(f"{path}/python", json={"code": "n = 5"})
    kept = (await http.post(f"{path}/snapshot")).json()
    assert kept["snapshot"].startswith(f"{replica.name}-")
    assert kept["cells"] == 1
    forks = (await http.post(f"{path}/fork", json={"n": 2})).json()
    again = await opened(http, snapshot=kept["snapshot"])
    for other in [*(f"{PREFIX}/{one['id']}" for one in forks), again]:
        cell = (await http.post(f"{other}/python", json={"code": "open('a').read(), n"})).json()
        assert cell["result"] == "('1', 5)"
        await http.delete(other)
    stranger = await http.post(PREFIX, json={"snapshot": kept["snapshot"]}, headers={"x-key": "m"})
    assert stranger.status_code == 404
    dropped = await http.delete(f"{PREFIX}/snapshots/{kept['snapshot']}")
    assert dropped.status_code == 200
    assert (await http.post(PREFIX, json={"snapshot": kept["snapshot"]})).status_code == 404
    await http.delete(path)


REFUSED = [
    ("POST", "/exec", b"{", "body"),
    ("POST", "/exec", b'{"argv": ["a"], "shell": "b"}', "exec: argv"),
    ("POST", "/exec", b'{"argv": ["a\\u0000b"]}', "exec: argv.0"),
    ("POST", "/exec", b'{"shell": "a", "wall_s": 1e9}', "exec: wall_s"),
    ("POST", "/exec", b'{"shell": "a", "cwd": "../.."}', "exec: cwd"),
    ("POST", "/exec", b'{"shell": "a", "env": {"A=B": "c"}}', "exec: env"),
    ("POST", "/exec", b'{"shel": "a"}', "exec: shel"),
    ("POST", "/python", b"{}", "python: code"),
    ("POST", "/fork", b'{"n": 100000}', "fork: n"),
    ("POST", "/grade", b"{}", "grade: tests"),
    ("PUT", "/files/%2e%2e/%2e%2e/etc/passwd", b"x", "path"),
    ("PUT", "/files/..%2f..%2fetc%2fpasswd", b"x", "path"),
    ("PUT", "/files/%2fetc%2fpasswd", b"x", "path"),
    ("PUT", "/files/a%00b", b"x", "path"),
    ("PUT", "/files/" + "n" * 256, b"x", "path"),
    ("PUT", "/files/" + "d/" * 80 + "x", b"x", "path"),
    ("PUT", "/files/%ff", b"x", "path"),
    ("PUT", "/files/a?mode=4755", b"x", "mode"),
    ("PUT", "/files/a?archive=rar", b"x", "archive"),
    ("PUT", "/files/a?archive=tar", b"no tar", "path"),
    ("GET", "/list?path=../..", b"", "path"),
    ("GET", "/files/%2e%2e/%2e%2e/%2e%2e/etc/passwd", b"", "path"),
]


@pytest.mark.parametrize(("method", "rest", "content", "field"), REFUSED)
async def test_bad_input_is_refused_with_the_fields_name(
    replica: Replica, method: str, rest: str, content: bytes, field: str
) -> None:
    path = await opened(replica.http)
    url = httpx.URL("http://x").copy_with(raw_path=(path + rest).encode())
    answer = await replica.http.request(method, url, content=content)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
    assert len(answer.text) < 3000
    await replica.http.delete(path)


async def test_many_files_open_a_workspace_and_too_many_are_the_callers_mistake(
    replica: Replica,
) -> None:
    path = await opened(replica.http, files={f"{number:0100}": "" for number in range(3000)})
    assert len((await replica.http.get(f"{path}/list")).json()) == 3000
    await replica.http.delete(path)
    many = {"files": {str(number): "" for number in range(50_001)}}
    answer = await replica.http.post(PREFIX, json=many)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "files")


async def test_devices_pipes_and_links_out_are_no_files(replica: Replica) -> None:
    http = replica.http
    path = await opened(http)
    made = "mkfifo pipe; ln -s /etc/passwd out; ln -s /dev/zero zero; ln -s ../.. up"
    await http.post(f"{path}/exec", json={"shell": made})
    for name in ("pipe", "out", "zero", "up/etc/passwd"):
        for method in ("GET", "PUT"):
            answer = await http.request(method, f"{path}/files/{name}", content=b"x")
            assert answer.status_code in (400, 404), (method, name, answer.text)
            assert answer.json()["error"]["param"] == "path"
    await http.delete(path)


async def test_a_body_or_an_archive_that_is_too_large_is_refused(replica: Replica) -> None:
    http = replica.http
    path = await opened(http, disk_mb=2)
    large = await http.put(f"{path}/files/a", content=b"x" * (5 << 20))
    assert (large.status_code, large.json()["error"]["param"]) == (413, "body")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * (64 << 20))
    answer = await http.put(f"{path}/files/in?archive=zip", content=bomb.getvalue())
    assert answer.status_code == 400, answer.text
    state = (await http.get(path)).json()
    assert state["disk_used"] < 2 << 20
    await http.delete(path)


async def test_the_document_names_every_route(replica: Replica) -> None:
    document = (await replica.http.get(f"{PREFIX}/openapi.json")).json()
    assert {"/{workspace_id}/exec", "/{workspace_id}/files/{path}", "/{workspace_id}/grade"} <= set(
        document["paths"]
    )
    assert "ExecCall" in document["components"]["schemas"]
