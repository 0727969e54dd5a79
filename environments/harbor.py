"""Tasks in the format of Harbor (harborframework), where a workspace is enough for them.

The file that a run file names as its environment has one line for it, with the folder of tasks

    rollout = harbor_rollout("/data/my-tasks")

and its tasks are written by

    python -m environments.harbor /data/my-tasks tasks.jsonl --skip-unfit

The model gets the instruction and a shell. Afterwards the tests go into the workspace, run, and
write the reward.
"""

import argparse
import asyncio
import base64
import gzip
import hashlib
import io
import json
import math
import re
import shlex
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from environments.harbor_task import IMAGES, HarborTask, files_below, tasks_of
from environments.problems import problems_on_stderr
from environments.turns import MAX_TURNS
from services.orchestrator.rollout.sandbox import Sandbox, sandbox
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from services.workspaces.client import WorkspaceFailed
from services.workspaces.tools import ToolLimits

PROMPT = (
    "Solve the task in a shell, which begins in {workdir}: call the tool bash, or write one block "
    "that begins with ```bash. Files stay; processes end with their command. An answer without a "
    "command ends the task."
)
_LIMITS = ToolLimits(wall_s=120.0, cpu_s=120.0)
_SPEC = {"memory_mb": 2048, "disk_mb": 1024, "processes": 256}
_BLOCK = re.compile(r"```(?:bash|sh)\n(.*?)```", re.DOTALL)
_ARCHIVE = ".harbor.tar"
_CPU_S = 3600.0
_SHOWN = 300  # characters of what the tests printed last
_LONGEST_COMMAND = 120_000  # characters: the kernel takes 128 KiB in one argument
_LOGS = ("logs/agent", "logs/verifier", "logs/artifacts")
_CLEAR = """chmod u+rwx .
for path in logs logs/verifier tests; do if [ -L "$path" ]; then rm "$path"; fi; done
if [ -e logs ] && [ ! -d logs ]; then rm logs; fi
for path in logs/verifier tests .harbor.tar; do
    if [ -e "$path" ]; then chmod -R u+rwx "$path"; fi; rm -rf "$path"
done"""


def harbor_rollout(
    folder: str | Path,
    *,
    tools: bool = True,
    max_turns: int = MAX_TURNS,
    limits: ToolLimits = _LIMITS,
    **spec: Any,
) -> Callable[[AsyncOpenAI, Task], Awaitable[float | dict[str, float]]]:
    """A rollout function that plays the tasks; returns the rewards of their tests.

    Args:
        folder: of the tasks that `python -m environments.harbor` read.
        tools: offer the tool bash; without it the model writes blocks of bash in its answers.
        max_turns: answers of the model, at most.
        limits: of each command of the model.
        spec: fields of `OpenWorkspace`, such as `memory_mb`; they go before what a task says.
    """
    root = Path(folder).resolve()

    async def rollout(client: AsyncOpenAI, task: Task) -> float | dict[str, float]:
        played = await asyncio.to_thread(_read, root, task.data)
        own = {"memory_mb": played.memory_mb, "disk_mb": played.disk_mb}
        given = _SPEC | {name: one for name, one in own.items() if one is not None} | spec
        async with sandbox(
            tools=("bash",), limits=limits, root_folders=played.root_folders, **given
        ) as box:
            files = {place.removeprefix("/"): path for place, path in played.files.items()}
            await _put(box, files, (*_LOGS, played.workdir.removeprefix("/")))
            await _act(client, task, box, played, max_turns, offered=box.tools if tools else None)
            return await _verified(box, played)

    return rollout


def _read(root: Path, data: Mapping[str, Any]) -> HarborTask:
    """The task that was written; raises InvalidInput if its files are others now."""
    played = HarborTask.read(root / data["folder"])
    if played.digest() != data["digest"]:
        fix = "Its files have changed: write the task file anew."
        raise InvalidInput("harbor task", str(played.folder), fix)
    return played


async def _put(box: Sandbox, files: Mapping[str, Path], folders: Sequence[str] = ()) -> None:
    """Write files by their path in the workspace.

    Raises:
        WorkspaceFailed: they do not fit into it.
    """
    archive = await asyncio.to_thread(_packed, files, folders)
    if await box.write(_ARCHIVE, archive):
        unpacked = await box.bash(f"tar -xf {_ARCHIVE} && rm {_ARCHIVE}")
        if unpacked.status == "ok":
            return
    raise WorkspaceFailed("workspace_ungraded", "the files of the task do not fit into it")


def _packed(files: Mapping[str, Path], folders: Sequence[str] = ()) -> bytes:
    """A tar of files and of empty folders."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, path in files.items():
            content, entry = path.read_bytes(), tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), path.stat().st_mtime
            entry.mode = 0o644 | path.stat().st_mode & 0o111
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def _exports(env: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(str(value))}; " for name, value in env.items())


async def _act(
    client: AsyncOpenAI,
    task: Task,
    box: Sandbox,
    played: HarborTask,
    max_turns: int,
    *,
    offered: list[Any] | None,
) -> None:
    """Have the model use the shell until it answers without a command."""
    before = f"cd {shlex.quote(played.workdir)}; {_exports(played.env)}"
    given: Any = {} if offered is None else {"tools": offered}
    messages: Any = task.chat
    ends = time.monotonic() + (math.inf if played.agent_s is None else played.agent_s)
    for _ in range(max_turns):
        if time.monotonic() > ends:
            return
        reply = await client.chat.completions.create(model="policy", messages=messages, **given)
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for one in said.tool_calls or ():
            called = getattr(one, "function", None)
            name, arguments = (called.name, called.arguments) if called else (one.type, "")
            text = await box.use(name, _begun(arguments, before))
            messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
        if not said.tool_calls:
            block = _BLOCK.search(said.content or "")
            if block is None:
                return
            text = await box.use("bash", {"command": before + block[1]})
            messages.append({"role": "user", "content": text or "(no output)"})


def _begun(arguments: str, before: str) -> str | dict[str, Any]:
    """Arguments of bash, begun so; what they are not, the tool answers."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        given = json.loads(arguments)
        return {**given, "command": before + given["command"]}
    return arguments


async def _verified(box: Sandbox, played: HarborTask) -> float | dict[str, float]:
    """Put the tests in the place of whatever is there, run them, and read what they wrote.

    Raises:
        WorkspaceFailed: no reward is known.
    """
    workdir = shlex.quote(played.workdir)
    await box.bash(_CLEAR)
    tests = {f"tests/{name}": path for name, path in files_below(played.folder / "tests").items()}
    await _put(box, tests, ("tests", *_LOGS))
    run = f"mkdir -p /work{workdir}; chmod +x tests/test.sh; cd {workdir} && "
    run += f"{{ {_exports({**played.env, **played.verifier_env})}/tests/test.sh; }}"
    log = "logs/verifier/test-stdout.txt"
    ended = await box.bash(f"{run} > /{log} 2>&1", wall_s=played.verifier_s, cpu_s=_CPU_S)
    why = f"the tests took longer than {played.verifier_s:g} s"
    if ended.status != "time_limit":
        for name, parsed in (("reward.json", _named), ("reward.txt", _number)):
            if (text := await box.read(f"logs/verifier/{name}")) is not None:
                try:
                    return parsed(text)
                except (ValueError, OverflowError, RecursionError) as error:
                    raise WorkspaceFailed("workspace_ungraded", f"{name}: {error}") from None
        why = f"the tests wrote no reward ({ended.status})"
    said = (await box.read(log) or "").strip()[-_SHOWN:]
    raise WorkspaceFailed("workspace_ungraded", f"{why}: {said}")


def _number(given: Any) -> float:
    if not math.isfinite(reward := float(given)):
        raise ValueError(f"{reward} is no reward")
    return reward


def _named(text: str) -> float | dict[str, float]:
    """Rewards by name; the one that is called `reward` alone is a number."""
    given = json.loads(text)
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{text[:80]!r} has no rewards by name")
    if wrong := [name for name, one in given.items() if not isinstance(one, int | float)]:
        raise ValueError(f"{wrong[0][:80]!r} is no number")
    rewards = {name: _number(value) for name, value in given.items()}
    return rewards["reward"] if rewards.keys() == {"reward"} else rewards


def task_row(task: HarborTask, *, heldout: bool, prompt: str = PROMPT) -> dict[str, Any]:
    """The row of a task file."""
    return {
        "task_id": task.folder.name,
        "split": "heldout" if heldout else "train",
        "messages": [
            {"role": "system", "content": prompt.replace("{workdir}", task.workdir)},
            {"role": "user", "content": task.instruction},
        ],
        "data": {"folder": task.folder.name, "digest": task.digest()},
    }


def known_answers(task: HarborTask) -> dict[str, Any]:
    """A line of `millrace audit --answers`: the reference solution, if it fits, and none."""
    files = files_below(task.folder / "solution")
    packed = base64.encodebytes(gzip.compress(_packed(files))).decode()
    command = f"base64 -d <<'END' | tar -xzf - -C /solution\n{packed}END\n"
    command += f"chmod +x /solution/solve.sh\n{_exports(task.solution_env)}/solution/solve.sh\n"
    fits = "solve.sh" in files and len(command) < _LONGEST_COMMAND
    good = [[f"```bash\n{command}```", "Done."]] if fits else []
    return {"task_id": task.folder.name, "good": good, "bad": ["Done."]}


def _fit(folder: Path, **how: Any) -> Iterator[HarborTask | InvalidInput]:
    for one in tasks_of(folder):
        try:
            yield HarborTask.read(one, **how)
        except InvalidInput as problem:
            yield problem


@problems_on_stderr()
def main() -> None:
    """Write a task file."""
    parser = argparse.ArgumentParser(description="Write the tasks of a folder of Harbor's.")
    parser.add_argument("folder", type=Path, help="has a folder for each task")
    parser.add_argument("out", type=Path, help="task file to write, JSON lines")
    parser.add_argument("--heldout", type=int, help="tasks to evaluate; a tenth without it")
    parser.add_argument("--prompt", default=PROMPT, help="what the model is told first")
    parser.add_argument("--image", action="append", default=[], help="that workspaces stand for")
    parser.add_argument("--offline", action="store_true", help="public networks are not needed")
    parser.add_argument("--skip-unfit", action="store_true", help="leave out what cannot be played")
    parser.add_argument("--answers", type=Path, help="write known answers for millrace audit")
    given = parser.parse_args()
    read = list(_fit(given.folder, images=[*IMAGES, *given.image], offline=given.offline))
    tasks = [one for one in read if isinstance(one, HarborTask)]
    unfit = [str(one) for one in read if isinstance(one, InvalidInput)]
    if unfit:
        said = f"{len(unfit)} of {len(read)} tasks cannot be played:"
        sys.stderr.write("\n".join([said, *unfit, ""]))
        if not given.skip_unfit:
            sys.exit(1)
    drawn = sorted(tasks, key=lambda one: hashlib.sha256(one.folder.name.encode()).digest())
    tenth = min(len(tasks) - 1, max(1, len(tasks) // 10))
    count = tenth if given.heldout is None else given.heldout
    heldout = {one.folder for one in drawn[:count]}
    rows = [task_row(one, heldout=one.folder in heldout, prompt=given.prompt) for one in tasks]
    _write(given.out, rows)
    if given.answers is not None:
        _write(given.answers, [known_answers(one) for one in tasks])


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
