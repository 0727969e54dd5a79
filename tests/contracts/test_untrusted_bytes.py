"""No bytes that somebody else wrote are turned into objects that run code, or run themselves."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for top in ("services", "environments", "millrace_tools", "examples")
    for path in (ROOT / top).rglob("*.py")
)

UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "joblib"}
READING = {
    "torch.load": "weights_only=True",
    "yaml.load": "yaml.safe_load",
    "yaml.unsafe_load": "yaml.safe_load",
    "yaml.full_load": "yaml.safe_load",
    "yaml.load_all": "yaml.safe_load_all",
    "pandas.read_pickle": "another format",
    "numpy.load": "another format",
    "np.load": "another format",
}
BETWEEN_RANKS = {
    # Inside the trainer's own process group, which is as trusted as Ray's: docs/security.md.
    "services/trainer/collectives.py",
}
PICKLED_METADATA = {
    # torch.distributed.checkpoint, on folders that the trainer wrote: docs/security.md.
    "services/trainer/checkpoints/checkpoint.py",
    "services/trainer/checkpoints/parameters.py",
}
RUNS_CODE = {
    # In the jail.
    "services/reward_service/jailed/answer.py",
    "services/reward_service/jailed/tester.py",
    "services/reward_service/jailed/workspace/child.py",
    "services/reward_service/jailed/workspace/kept_interpreter.py",
    # This repository's own expressions.
    "examples/code_interpreter/tasks.py",
    "examples/tiny_code/tasks.py",
    # Nothing.
    "millrace_tools/main.py",
}
IMPORTS_BY_NAME = {
    # What whoever deploys says in a deployment file.
    "millrace_tools/deploy/deployment.py",
    "services/reward_service/graders/user_graders.py",
    "services/reward_service/grading/helper_main.py",
    # What a run file says, where the deployment file lets it.
    "services/orchestrator/rollout/environment_host.py",
    "services/trainer/algorithms/losses/user_loss.py",
    # Names that are in the code.
    "millrace_tools/cluster/fork_server.py",
    "services/reward_service/languages/__init__.py",
    "services/orchestrator/tasks/task_rows.py",
    "services/orchestrator/trackers/tracker.py",
    "environments/gymnasium.py",
    "environments/mcp.py",
    "environments/openenv.py",
    "environments/verifiers.py",
    "environments/verifiers_tasksets.py",
    "environments/verifiers_tools.py",
    "services/reward_service/jailed/answer.py",
    "services/reward_service/jailed/build.py",
}


def test_nothing_is_unpickled() -> None:
    importers = {
        f"{path}:{node.lineno}"
        for path, node in nodes(ast.Import, ast.ImportFrom)
        for name in imported(node)
        if name.partition(".")[0] in UNPICKLING
    }
    assert not importers


def test_only_the_jail_reads_marshalled_values() -> None:
    """The service writes them; what an answer sends back is never one."""
    found = {path for path, _, name in calls() if name in ("marshal.load", "marshal.loads")}
    assert found == {"services/reward_service/jailed/zygote.py"}


def test_files_are_read_by_loaders_that_make_only_data() -> None:
    found = {
        f"{path}:{call.lineno}: {name}, use {READING[name]}"
        for path, call, name in calls()
        if name in READING and not has(call, "weights_only", True)
    }
    assert not found


def test_objects_pass_only_between_the_ranks_of_one_trainer() -> None:
    found = {
        path
        for path, _, name in calls()
        if name.endswith(("_object", "_object_list")) and name.startswith("dist.")
    }
    assert found == BETWEEN_RANKS


def test_checkpoints_are_read_only_where_that_is_known() -> None:
    found = {
        path
        for path, node in nodes(ast.ImportFrom)
        if str(node.module).startswith("torch.distributed.checkpoint")
        and {"load", "FileSystemReader"} & {alias.name for alias in node.names}
    }
    assert found == PICKLED_METADATA


def test_only_the_jail_runs_code_that_came_as_text() -> None:
    assert {path for path, _, name in calls() if name in ("exec", "eval")} == RUNS_CODE


def test_only_what_is_named_here_imports_by_name() -> None:
    by_name = {"import_module", "resolve_name", "run_path", "spec_from_file_location", "__import__"}
    found = {path for path, _, name in calls() if name.rpartition(".")[2] in by_name}
    assert found == IMPORTS_BY_NAME


def test_no_model_brings_code_of_its_own() -> None:
    found = {
        f"{path}:{call.lineno}"
        for path, call, name in calls()
        if has(call, "trust_remote_code", True)
        or (name.endswith("Model.from_pretrained") and not has(call, "use_safetensors", True))
        or (name.endswith("CausalLM.from_pretrained") and not has(call, "use_safetensors", True))
    }
    assert not found
    deployed = [path.read_text() for path in (ROOT / "deploy").rglob("*.yaml")]
    assert not [text for text in deployed if "trust_remote_code: true" in text]


@cache
def everything() -> list[tuple[str, ast.AST]]:
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
    ]


def nodes(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    return ((path, node) for path, node in everything() if isinstance(node, kinds))


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    for path, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        yield path, node, ast.unparse(node.func)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [str(node.module)]
    return [alias.name for alias in node.names]


def has(call: ast.Call, name: str, value: object) -> bool:
    return any(
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is value
        for keyword in call.keywords
    )
