"""A plan as the files of another server: one function for each server, over its table of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from latfix.config.plan import Plan
from latfix.files.toml_writer import toml_comment
from latfix.reports.server_configs import kubernetes, litserve, rayserve, torchserve, triton, vllm
from latfix.reports.server_configs.formats import properties, protobuf_text, python_mapping, shell_variables, yaml
from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table, translate

#: Start of the first line of every file.
MARK = "# Written by latfix export-plan"
_Document = dict[str, Any]
_Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Export:
    """The files of a server.

    :param files: their texts by their usual names.
    :param notes: settings that the files do not cover, one per line; also comments in the files.
    """

    files: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerWriter:
    """A server: its display name, its table, and the function that writes its files from translated entries.

    :param usage: how to use the files.
    """

    title: str
    table: Table
    texts: Callable[[_Document, Plan, _Environment], Mapping[str, str]]
    usage: str


def export(target: str, plan: Plan, environment: Mapping[str, str]) -> Export:
    """A plan for one of :data:`TARGETS`.

    :param environment: all environment variables that the plan's settings require.
    """
    server = TARGETS[target]
    document, notes = translate(server.table, plan.settings(), server.title)
    if plan.verdict not in ("", "improved"):
        notes = [f"the plan is {plan.proof}", *notes]
    if not plan.settings():
        notes = ["the plan is empty: it changes no settings"]
    head = [f"{MARK} from a plan for {plan.workload}: {server.usage}"]
    head += ["Measured in latfix's own engine; measure again in this server.", *notes]
    comments = "".join(f"{toml_comment(line.removeprefix('# '))}\n" for line in head)
    texts = server.texts(document, plan, environment)
    return Export({name: comments + text for name, text in texts.items()}, tuple(notes))


def _torchserve(document: _Document, _plan: Plan, _environment: _Environment) -> dict[str, str]:
    return {
        "config.properties": properties(document.get("server", {})),
        "model-config.yaml": yaml(document.get("model", {})),
    }


def _litserve(document: _Document, _plan: Plan, _environment: _Environment) -> dict[str, str]:
    names = ("LIT_API", "LIT_SERVER")
    return {"litserve_settings.py": "".join(python_mapping(name, document.get(name, {})) for name in names)}


def _rayserve(document: _Document, plan: Plan, environment: _Environment) -> dict[str, str]:
    deployment = document.get("deployment", {})
    if environment:
        actor = deployment.setdefault("ray_actor_options", {})
        variables = actor.setdefault("runtime_env", {}).setdefault("env_vars", {})
        variables.update(environment)
    application = {
        "name": plan.workload,
        "import_path": "your_module:app",
        "deployments": [{"name": "YourDeployment", **deployment}],
    }
    http = {"http_options": document["http_options"]} if "http_options" in document else {}
    return {"serve_config.yaml": yaml({**http, "applications": [application]})}


def _kubernetes(document: _Document, _plan: Plan, environment: _Environment) -> dict[str, str]:
    variables = {each["name"]: each["value"] for each in document.get("env", ())} | dict(environment)
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return {"container.yaml": yaml({**document, "env": env} if env else document)}


#: Variables that a service's process must be started with, as a shell file.
_ENVIRONMENT: Table = {
    **NO_COUNTERPART,
    "intra_op_threads": lambda value, _settings: [Put(("OMP_NUM_THREADS",), str(value))] if value else [],
    "huge_pages": lambda value, _settings: (
        ["no environment variable disables huge pages"] if value == "never" else []
    ),
    "env": lambda _value, _settings: [],  # the whole environment is written
}

_SERVE = "vllm serve MODEL --config vllm.yaml; only for language models that vLLM supports"
_LIT = "MyAPI(**LIT_API), LitServer(api, **LIT_SERVER)"
_SHELL = "set -a; . ./latfix.env; set +a"
_MERGE = "merge it into your container in spec.template.spec.containers"

TARGETS: Mapping[str, ServerWriter] = {
    "triton": ServerWriter(
        "Triton",
        triton.TABLE,
        lambda document, plan, _: {"config.pbtxt": protobuf_text({"name": plan.workload, **document})},
        "add input and output, or let Triton complete them",
    ),
    "vllm": ServerWriter("vLLM", vllm.TABLE, lambda document, *_: {"vllm.yaml": yaml(document)}, _SERVE),
    "torchserve": ServerWriter(
        "TorchServe", torchserve.TABLE, _torchserve, "--ts-config, and --config-file of the archiver"
    ),
    "litserve": ServerWriter("LitServe", litserve.TABLE, _litserve, _LIT),
    "rayserve": ServerWriter(
        "Ray Serve", rayserve.TABLE, _rayserve, "fill in your import_path and deployment's name"
    ),
    "env": ServerWriter(
        "the environment",
        _ENVIRONMENT,
        lambda document, _, variables: {"latfix.env": shell_variables({**document, **variables})},
        _SHELL,
    ),
    "kubernetes": ServerWriter("Kubernetes", kubernetes.TABLE, _kubernetes, _MERGE),
}
