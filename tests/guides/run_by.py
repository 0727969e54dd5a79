"""Who runs which blocks of the guides, beside the walk; and what nobody runs, and why."""

_SANDBOXES = "tests/reward_service/workspace_api/test_sandboxes_doc.py"

COMMANDS_RUN_BY = {
    "make test": ".ci/run",
    "make lint": "tests/contracts/test_house_rules.py",
    "make help": "tests/contracts/test_house_rules.py",
    "millrace grade sums.py": "tests/reward_service/test_rewards_doc.py",
    "millrace grade sorting.cpp": "tests/reward_service/test_rewards_doc.py",
    "millrace grade any_divisor.py": "tests/reward_service/test_rewards_doc.py",
    "millrace grade --tests any_divisor.yaml": "tests/reward_service/test_rewards_doc.py",
    "curl -sN http://127.0.0.1:8000/v1/grade": "tests/reward_service/test_rewards_doc.py",
    "millrace grade answer.py": "tests/cli/test_grade.py",
    "millrace grade --task-file": "tests/examples/test_your_own_tasks_doc.py",
    "millrace export RUN_DIR adapters/mine --adapter": "tests/trainer/test_lora.py",
    "millrace export RUN_DIR models/merged": "tests/trainer/test_lora.py",
    "millrace doctor": "tests/cli/doctor",
    "uv pip install --compile-bytecode millrace[cpu]": "tests/operations/test_wheel.py",
    "make task TASK=mine": "tests/operations/test_own_task.py",
    "make demo TASK=mine": "tests/operations/test_own_task.py",
    "millrace init": "tests/operations/test_wheel.py",
    "millrace init --gpus": "tests/cli/test_init_gpus.py",
    "millrace view": "tests/page",
    "millrace compare": "tests/cli/test_comparison.py",
    "millrace report": "tests/cli/test_comparison.py",
    "millrace top": "tests/cli/top",
    "millrace logs": "tests/cli/test_run_commands.py",
    "millrace status": "tests/cli/test_status.py",
    "promtool check config": "tests/deploy/test_prometheus.py",
    "python -m deploy.grafana.make_dashboards": "tests/deploy/test_dashboards.py",
    "millrace check deploy/": "tests/deploy/test_sizes.py",
    "millrace chaos": "tests/chaos/test_whole_run.py",
    "millrace export RUN_DIR/checkpoints/step-00000200": "tests/trainer/test_export.py",
    "serve deploy": "tests/operations/test_live_changes.py",
    "pytest tests/fuzz": "tests/fuzz/test_public_endpoints.py",
    "export OPENAI": "tests/conformance/test_agents_doc.py",
    "curl -s http://127.0.0.1:8000/v1/sandboxes": _SANDBOXES,
    "curl -s -X PUT http://127.0.0.1:8000/v1/sandboxes": _SANDBOXES,
    "curl -s -X DELETE http://127.0.0.1:8000/v1/sandboxes": _SANDBOXES,
    "export ID=...": "tests/reward_service/test_sandbox_guide.py",
}
"""By the beginning of a command."""

PYTHON_RUN_BY = {
    "docs/agents.md": "tests/conformance/test_agents_doc.py",
    "docs/algorithms.md": "tests/trainer/algorithms/test_user_loss.py",
    "docs/give-your-agent-a-sandbox.md": "tests/reward_service/test_sandbox_guide.py",
    "docs/environments.md": "tests/examples/test_environments_doc.py",
    "docs/languages.md": "tests/reward_service/test_languages_doc.py",
    "docs/migrating.md": "tests/guides/test_migration.py",
    "docs/sandboxes-tools.md": "tests/reward_service/workspace_api/test_mcp_server.py",
    "docs/rewards.md": "tests/reward_service/test_rewards_doc.py",
    "docs/your-own-tasks.md": "tests/operations/own_task.py",
}
"""By page; its C++ too."""

NOT_RUN = {
    ".venv/bin/pre-commit install": "it writes hooks into the clone",
    "pip install": "it fetches packages; that the extras exist is tested",
    "python -m venv /tmp/peers": "it makes an environment for a peer",
    "/tmp/peers/bin/pip install": "it fetches a peer's packages",
    "python -m benchmarks.": "it measures, for minutes to hours; its options are tested",
    "python -m services.orchestrator.rollout.verifiers_environment": "it needs the hub",
    "docker": "no Docker in the tests",
    "kubectl": "no Kubernetes in the tests; tests/deploy checks the files",
    "ray get-auth-token": "it writes a token into the home folder",
    "ray up": "it rents machines",
    "ray attach": "it needs the rented machines",
    "export RAY_AUTH_MODE=token": "the walk's cluster has no token",
    "cd millrace": "on the rented head node, or in a new clone",
    "git clone REPOSITORY": "the test has a copy; `python -m benchmarks.own_task` clones",
    "millrace wait --timeout": "the walk waits with the default",
    "apt-get install": "it installs a program of the operating system",
    "prometheus --config.file": "it writes below /var/lib",
    "sed -i": "it edits files of the clone",
    "export PROMETHEUS_URL": "no Grafana in the tests",
    "grafana server": "no Grafana in the tests",
    "serve status": "it only looks",
    "ray status": "it only looks",
    "ray logs cluster": "it only looks",
    "jq": "it edits a file of Docker's",
    "ray start --head": "docs/graders.md starts a second Ray; the walk starts the first",
    "export RAY_ADDRESS": "of a second Ray, as above",
    "serve run deploy/reward.yaml": "as above; tests/deploy checks the file",
    "serve run deploy/sandboxes.yaml": "as above; tests/deploy checks the file",
    "curl -N http://127.0.0.1:8000/v1/grade": "as above; docs/rewards.md has the same call",
}
"""Commands that no test runs, by their beginning, and why. Their arguments are checked."""

NOT_READ = {"caddy": "no Caddy in the tests"}
"""Languages of blocks that no test reads, and why."""
