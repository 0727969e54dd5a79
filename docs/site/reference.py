"""The reference pages: Markdown by path, from the code; `docs/make_reference.py` writes them."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast
from unittest.mock import patch

from fastapi import FastAPI
from pydantic import BaseModel
from ray.util.metrics import Counter, Histogram

from docs.site.models import Link, describe, models_of, section
from millrace_tools.main import command_parser
from services.observability import metrics
from services.orchestrator.api import http_api as runs_api
from services.page.app import PREFIX
from services.page.http_app import page_app
from services.reward_service.http_api import http_api as reward_api
from services.reward_service.workspace_api.http_api import http_api as sandboxes_api
from services.reward_service.workspace_api.peer_listener import PREFIX as SANDBOXES
from services.router.config import RouterConfig
from services.router.http_app import build_http

MODEL_PAGES: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    "reference/services.md": (
        "Deployment files: arguments of the services",
        "The `args` of each application of a deployment file, such as `deploy/laptop.yaml`; every "
        "other key of the file is Ray Serve's. `millrace check FILE` refuses keys that are not "
        "here, values outside their bounds, and services that would not find each other.",
        {
            "Router": ("services.router.config",),
            "Rollout server": ("services.rollout_server.config",),
            "Reward service": ("services.reward_service.config",),
            "Sandboxes": ("services.reward_service.workspaces.config",),
            "Orchestrator": ("services.orchestrator.config",),
            "Trainer": ("services.trainer.config",),
            "Weight bus": ("services.weight_bus.config",),
            "Page": ("services.page.config",),
            "Traces": ("services.observability.tracing",),
            "API keys": ("services.access.config", "services.access.api_keys"),
        },
    ),
    "reference/run-file.md": (
        "Run files",
        "What `millrace run FILE` takes. The top of the file is `RunConfig`; the classes below it "
        "are its sections. `millrace run FILE --dry-run` explains a file and starts nothing.",
        {
            "The run": ("services.protocol.run.orchestrator",),
            "Sampling": ("services.protocol.run.sampling",),
            "Schedule": ("services.protocol.run.schedule",),
            "Algorithm": (
                "services.protocol.run.algorithm",
                "services.protocol.run.kl",
                "services.protocol.run.distillation",
                "services.protocol.run.sequence_mask",
            ),
            "Evaluation": ("services.protocol.run.evaluation",),
            "Curriculum": ("services.protocol.run.task",),
            "Trackers": ("services.protocol.run.tracker",),
            "Profiles": ("services.protocol.run.profile",),
        },
    ),
    "reference/tasks.md": (
        "Task files and graders",
        "A line of a task file is a `Task`; its `grader` is one of the kinds below. `millrace "
        "grade ANSWER --tests FILE` tries a grader on an answer without any service.",
        {
            "Tasks": ("services.protocol.run.task",),
            "Graders": (
                "services.protocol.reward.grader",
                "services.protocol.reward.code_graders",
            ),
            "Tests of code": ("services.protocol.reward.code_tests",),
        },
    ),
    "reference/sandboxes.md": (
        "Calls of sandboxes",
        "Bodies and answers of `/v1/sandboxes`; see [sandboxes](../sandboxes.md).",
        {
            "Workspaces": ("services.protocol.reward.workspaces",),
            "Tests of a workspace": ("services.protocol.reward.workspace_tests",),
        },
    ),
    "reference/chaos.md": (
        "Scripts of faults",
        "What `millrace chaos --script FILE` takes; see [chaos](../chaos.md).",
        {"The script": ("millrace_tools.chaos.script",)},
    ),
    "reference/sessions.md": (
        "Sessions and loads",
        "Bodies of the router's answers about sessions, trajectories and its load.",
        {
            "Sessions": ("services.protocol.session",),
            "Router": ("services.protocol.router",),
        },
    ),
}
"""Of each page: title, what comes first, and the modules behind each heading."""

_HELP_COLUMNS = "100"


@cache
def pages() -> dict[str, str]:
    """All reference pages, by path below docs/."""
    return {
        **{path: _models_page(path) for path in MODEL_PAGES},
        "reference/cli.md": _command_line(),
        "reference/http.md": _http(),
        "reference/metrics.md": _metrics(),
    }


def _models_page(path: str) -> str:
    title, about, headings = MODEL_PAGES[path]
    parts = [f"# {title}\n\n{about}\n"]
    for heading, modules in headings.items():
        parts.append(f"## {heading}\n")
        parts += [section(model, linker(path)) for name in modules for model in models_of(name)]
    return "\n".join(parts)


def linker(page: str) -> Link:
    """Links to classes from this page; a class that has no place is only named."""
    places = {
        model.__name__: path
        for path, (_, _, headings) in MODEL_PAGES.items()
        for modules in headings.values()
        for module in modules
        for model in models_of(module)
    }

    def link(name: str) -> str:
        if name not in places:
            return f"`{name}`"
        path = "" if places[name] == page else places[name].rpartition("/")[2]
        return f"[`{name}`]({path}#{name.lower()})"

    return link


def _command_line() -> str:
    parser = command_parser()
    parts = [f"# Command line\n\n{parser.description} What `millrace COMMAND --help` prints.\n"]
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    with patch.dict(os.environ, COLUMNS=_HELP_COLUMNS):
        for name, command in commands.choices.items():
            parts.append(f"## {name}\n\n```text\n{command.format_help().strip()}\n```\n")
    return "\n".join(parts)


@cache
def http_services() -> dict[str, tuple[str, str, FastAPI]]:
    """Of each service that speaks HTTP: title, where it is mounted, and its application.

    Nothing is started, so what they lean on is left out.
    """
    nothing = cast(Any, None)
    return {
        "router": ("Router", "", build_http(RouterConfig(), nothing)),
        "orchestrator": ("Runs", "/v1/runs", runs_api(nothing)),
        "reward_service": ("Reward service", "", reward_api(nothing)),
        "workspace_api": ("Sandboxes", SANDBOXES, sandboxes_api(nothing)),
        "page": ("Page", PREFIX, page_app(nothing)),
    }


def _http() -> str:
    parts = [
        "# HTTP\n\nMade from the services' own OpenAPI documents; the router serves its own at "
        "`/openapi.json`. Bodies of chats and completions are OpenAI's, see "
        "[the API page](../api.md) for where answers differ from vLLM's. Where a deployment has "
        "[API keys](../access.md), every path wants one, except `/` and `/health` of the router, "
        "`/health` of the reward service, and the page's own files. "
        "`millrace view` serves the page's paths without `/page`; they are what its browser side "
        "asks, and may change with it.\n"
    ]
    for title, prefix, app in http_services().values():
        parts.append(f"## {title}\n")
        parts += _operations(prefix, app)
    return "\n".join(parts)


def _operations(prefix: str, app: FastAPI) -> Iterator[str]:
    link = linker("reference/http.md")
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"### {method.upper()} {prefix}{path}\n"
            yield (operation.get("description") or operation.get("summary", "")) + "\n"
            if parameters := operation.get("parameters"):
                yield _parameters(parameters, link)
            body = operation.get("requestBody", {}).get("content", {})
            for kind, content in body.items():
                yield _body(f"Body, `{kind}`", content.get("schema", {}), document)
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                said = f": {describe(schema, link)}" if schema and "$ref" in schema else ""
                yield f"* `{status}` {answer['description']}{said}"
            yield ""


def _parameters(parameters: Sequence[Mapping[str, Any]], link: Link) -> str:
    lines = ["| parameter | in | type | default | meaning |", "|---|---|---|---|---|"]
    for one in parameters:
        schema = one["schema"]
        default = "none" if schema.get("default") is None else f"`{json.dumps(schema['default'])}`"
        kind = "required" if one.get("required") else default
        said = one.get("description", "")
        lines.append(
            f"| `{one['name']}` | {one['in']} | {describe(schema, link)} | {kind} | {said} |"
        )
    return "\n".join(lines) + "\n"


def _body(title: str, schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A link to where the model is explained, or else its fields."""
    link = linker("reference/http.md")
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if (place := link(name)) != f"`{name}`":
            return f"{title}: {place}\n"
        schema = document["components"]["schemas"][name]
    wanted = schema.get("required", [])
    lines = ["| field | | type |", "|---|---|---|"]
    for name, one in schema.get("properties", {}).items():
        lines.append(
            f"| `{name}` | {'required' if name in wanted else ''} | {describe(one, link)} |"
        )
    return f"{title}:\n\n" + "\n".join(lines) + "\n" if "properties" in schema else f"{title}.\n"


def _metrics() -> str:
    parts = [
        "# Metrics\n\nExported by Ray's metrics agent of each node, for Prometheus; Ray puts "
        "`ray_` before every name and adds tags of its own (node, session, process). vLLM's own "
        "metrics appear beside these as `ray_vllm_*`, Ray's and Serve's as `ray_*`.\n"
    ]
    for name, group in vars(metrics).items():
        if isinstance(group, type) and name.endswith("Metrics"):
            parts.append(f"## {name}\n\n{group.__doc__}\n")
            parts.append("| metric | type | tags | meaning |\n|---|---|---|---|")
            parts += [_metric(one) for one in vars(group).values() if _is_metric(one)]
            parts.append("")
    return "\n".join(parts)


def _is_metric(value: object) -> bool:
    return isinstance(value, Counter | Histogram | metrics.Gauge)


def _metric(metric: Any) -> str:
    kind, ends = "gauge", [""]
    if isinstance(metric, Counter):
        kind, ends = "counter", ["_total"]
    elif isinstance(metric, Histogram):
        kind, ends = "histogram", ["_bucket", "_sum", "_count"]
    info = metric.info
    names = f"`ray_{info['name']}{ends[0]}`" + "".join(f", `{end}`" for end in ends[1:])
    tags = ", ".join(f"`{tag}`" for tag in info["tag_keys"])
    return f"| {names} | {kind} | {tags} | {info['description']} |"


def model_classes() -> dict[str, list[type[BaseModel]]]:
    """Every class of the model pages, by module."""
    return {
        module: models_of(module)
        for _, _, headings in MODEL_PAGES.values()
        for modules in headings.values()
        for module in modules
    }
