"""The kept interpreter: variables, results, tracebacks, pictures, and its end."""

import asyncio
import base64
import os
import signal
from functools import partial

import pytest

from services.protocol.reward.workspaces import CallResult, ExecCall, PythonCall
from services.reward_service.workspaces.workspace import Workspace
from tests.reward_service.workspaces.conftest import end_call_and_interpreter, running

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def cell(workspace: Workspace, code: str, **given: object) -> CallResult:
    return await workspace.python(PythonCall.model_validate({"code": code, **given}))


async def test_variables_functions_and_imports_stay(workspace: Workspace) -> None:
    assert (await cell(workspace, "import math\nx = 20\ndef f(y): return x + y")).result is None
    assert (await cell(workspace, "x += 1\nf(math.floor(1.5))")).result == "22"
    assert (await cell(workspace, "_")).result == "22"
    assert (await cell(workspace, "import sys; sys.modules['__main__'].x")).result == "21"


async def test_a_cell_prints_and_gives_the_value_of_its_last_expression(
    workspace: Workspace,
) -> None:
    result = await cell(workspace, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n'é'")
    assert result.status == "ok"
    assert (result.stdout, result.stderr, result.result) == ("out\n", "err\n", "'é'")
    assert result.exit_code is None
    assert (await cell(workspace, "x = 5")).result is None
    assert (await cell(workspace, "")).status == "ok"


async def test_a_traceback_has_the_cells_lines_and_no_others(workspace: Workspace) -> None:
    await cell(workspace, "def f(x):\n    return 1 / x")
    result = await cell(workspace, "f(0)")
    assert result.status == "failed"
    assert result.traceback is not None
    assert "ZeroDivisionError: division by zero" in result.traceback
    assert "return 1 / x" in result.traceback
    assert "kept_interpreter" not in result.traceback
    assert not result.interpreter_restarted
    wrong = await cell(workspace, "def f(:")
    assert "SyntaxError" in (wrong.traceback or "")
    assert "kept_interpreter" not in (wrong.traceback or "")


async def test_a_cell_sees_files_modules_and_programs_of_the_workspace(
    workspace: Workspace,
) -> None:
    await workspace.write("own.py", b"value = 7")
    code = "import own, subprocess\nsubprocess.run(['cat', 'own.py'], capture_output=True).stdout"
    assert (await cell(workspace, code)).result == "b'value = 7'"
    await cell(workspace, "open('made', 'w').write(str(own.value))")
    assert (await workspace.exec(ExecCall(shell="cat made"))).stdout == "7"


async def test_a_cell_that_waits_for_input_gets_its_end(workspace: Workspace) -> None:
    result = await cell(workspace, "input()")
    assert "EOFError" in (result.traceback or "")


async def test_asynchronous_code_and_threads_run(workspace: Workspace) -> None:
    code = "import asyncio\nasync def f(): await asyncio.sleep(0); return 3\nasyncio.run(f())"
    assert (await cell(workspace, code)).result == "3"
    code = "from concurrent.futures import ThreadPoolExecutor as T\nT().submit(lambda: 4).result()"
    assert (await cell(workspace, code)).result == "4"


PNG = base64.b64encode(b"\x89PNG...").decode()
SHOWN = """class Shown:
    def _repr_png_(self): return b"\\x89PNG..."
    def _repr_svg_(self): return "<svg/>"
"""
PYPLOT = """import sys, types
class Figure:
    def savefig(self, file, format): file.write(b"\\x89PNG...")
plots = types.SimpleNamespace(
    get_fignums=lambda: [1, 2], figure=lambda number: Figure(), close=lambda which: None)
sys.modules["matplotlib.pyplot"] = plots
"""


async def test_pictures_of_a_result_and_of_open_figures_are_shown(workspace: Workspace) -> None:
    result = await cell(workspace, SHOWN + "Shown()")
    assert [(one.mime, one.base64) for one in result.pictures] == [
        ("image/png", PNG),
        ("image/svg+xml", base64.b64encode(b"<svg/>").decode()),
    ]
    result = await cell(workspace, PYPLOT)
    assert [(one.mime, one.base64) for one in result.pictures] == [("image/png", PNG)] * 2


async def test_pictures_beyond_the_limit_are_left_out(workspace: Workspace) -> None:
    code = "class Large:\n  def _repr_png_(self): return bytes(9 << 20)\nLarge()"
    result = await cell(workspace, code)
    assert (result.status, result.pictures) == ("ok", [])


async def test_a_restart_forgets_the_variables_and_says_so(workspace: Workspace) -> None:
    await cell(workspace, "x = 1")
    result = await cell(workspace, "x", restart=True)
    assert "NameError" in (result.traceback or "")
    assert result.interpreter_restarted
    assert not (await cell(workspace, "x = 2")).interpreter_restarted


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("import sys; sys.exit()", "ok", 0),
        ("import sys; sys.exit(3)", "failed", 3),
        ("import sys; sys.exit('said')", "failed", 1),
        ("quit()", "ok", 0),
        ("exit(3)", "failed", 3),
        ("import os; os._exit(4)", "failed", 4),
        ("import os; os.kill(os.getpid(), 9)", "failed", -9),
        ("import os; os.abort()", "failed", -6),
        ("import ctypes; ctypes.string_at(0)", "failed", -11),
        ("import os; os.close(3)", "failed", None),
    ],
)
async def test_an_interpreter_that_ends_is_replaced_and_it_is_said(
    workspace: Workspace, code: str, status: str, exit_code: int | None
) -> None:
    await cell(workspace, "x = 1")
    result = await cell(workspace, code)
    assert result.status == status, result
    assert exit_code is None or result.exit_code == exit_code
    assert result.interpreter_restarted
    assert running(workspace) == []
    assert "NameError" in ((await cell(workspace, "x")).traceback or "")


async def test_an_interpreter_that_dies_right_after_its_report_has_its_result(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell(workspace, "x = 1")
    dies = partial(end_call_and_interpreter, workspace.jail, workspace.jail.end_call)
    monkeypatch.setattr(workspace.jail, "end_call", dies)
    result = await cell(workspace, "x + 1")
    assert (result.status, result.result, result.exit_code) == ("ok", "2", None)
    assert result.interpreter_restarted
    monkeypatch.undo()
    assert "NameError" in ((await cell(workspace, "x")).traceback or "")


async def test_variables_that_go_without_an_answer_are_told_with_the_next_cell(
    workspace: Workspace,
) -> None:
    await cell(workspace, "x = 1")
    begun = asyncio.Event()
    endless = PythonCall(code="print('on', flush=True)\nwhile True: pass", wall_s=3600, cpu_s=3600)
    call = asyncio.ensure_future(workspace.python(endless, lambda stream, part: begun.set()))
    await asyncio.wait_for(begun.wait(), 300)
    call.cancel()
    await asyncio.wait([call])
    told = await cell(workspace, "x")
    assert "NameError" in (told.traceback or "")
    assert told.interpreter_restarted
    assert not (await cell(workspace, "y = 2")).interpreter_restarted
    os.kill(running(workspace)[0], signal.SIGKILL)
    await workspace.exec(ExecCall(shell="true"))
    assert (await cell(workspace, "'y' in globals()")).interpreter_restarted


async def test_a_long_result_is_cut_however_much_output_may_be(workspace: Workspace) -> None:
    result = await cell(workspace, "chr(233) * (4 << 20)", output_kb=65536)
    assert (result.status, result.interpreter_restarted) == ("ok", False)
    assert len(result.result or "") == 1 << 19


async def test_a_cell_imports_what_the_first_process_had_not(workspace: Workspace) -> None:
    names = "glob, random, sqlite3, xml.dom.minidom, multiprocessing, ctypes, _decimal"
    result = await cell(workspace, f"import {names}\nrandom.Random(1).randint(1, 1)")
    assert (result.traceback, result.result) == (None, "1")


async def test_only_without_namespaces_is_the_name_of_the_node_told(workspace: Workspace) -> None:
    result = await cell(workspace, "import os, socket\nos.uname().nodename, socket.gethostname()")
    name = "workspace" if workspace.tier == "A" else os.uname().nodename
    assert result.result == repr((name, name))


HOSTILE = {
    "forged": "import os, json\nreport = json.dumps({'cell': 2, 'result': 'forged', 'traceback': "
    "None, 'pictures': []}).encode()\nos.write(3, len(report).to_bytes(4, 'big') + report)",
    "of another cell": "import os\nos.write(3, b'\\0\\0\\0\\x0a{\"cell\":9}')",
    "no JSON": "import os\nos.write(3, b'\\0\\0\\0\\4nope')",
    "deep JSON": "import os\nos.write(3, (100000).to_bytes(4, 'big') + b'[' * 100000)",
    "large number": "import os\nos.write(3, (10003).to_bytes(4, 'big') + b'[' + b'1'*10001 + b']')",
    "wrong types": 'import os\nos.write(3, b\'\\0\\0\\0\\x16{"cell":2,"result":[1]}\')',
    "too long": "import os\nos.write(3, b'\\xff\\xff\\xff\\xff' + b' ' * 10000)",
    "half a report": "import os, time\nos.write(3, b'\\0\\0'); os._exit(0)",
    "lone surrogates": "'\\ud800' + chr(0xdfff)",
    "a repr that raises": "class R:\n  def __repr__(self): raise KeyboardInterrupt\nR()",
    "an error that cannot be shown": "class E(Exception):\n  def __str__(self): 1/0\nraise E",
    "no streams": "import sys\nsys.stdout = None; del sys.stderr; sys.stdin.close()",
    "a closed stream": "import sys\nsys.stdout.close()",
    "json replaced": "import json\njson.dumps = None",
    "recursion": "def f(): f()\nf()",
    "deep source": "(" * 100000,
    "long result": "'x' * (100 << 20)",
    "a traceback that is long": "raise ValueError('x' * (50 << 20))",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_whatever_an_interpreter_reports_is_data_and_its_workspace_goes_on(
    workspace: Workspace, name: str
) -> None:
    await cell(workspace, "x = 1")
    result = await cell(workspace, HOSTILE[name], wall_s=600)
    result.model_dump_json().encode()
    assert len(result.model_dump_json()) < 10 << 20
    for _ in range(2):
        after = await cell(workspace, "1 + 1", wall_s=600)
    assert after.result == "2", after
    assert (await workspace.exec(ExecCall(shell="echo on"))).stdout == "on\n"
