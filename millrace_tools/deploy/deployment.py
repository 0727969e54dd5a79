"""A deployment file: checked without a cluster, then deployed by Serve.

The command line uses private interfaces of Serve only here and in `serve_demands.py`. Serve itself
ignores unknown keys at every level, and finds invalid arguments only on the cluster.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError
from ray import serve
from ray.serve._private.api import serve_start
from ray.serve._private.build_app import BuiltApplication, build_app
from ray.serve.context import _check_cached_client_alive, _disconnect
from ray.serve.schema import LoggingConfig, ServeApplicationSchema, ServeDeploySchema

from millrace_tools.capacity.capacity import Nodes, check_capacity
from millrace_tools.capacity.demands import ResourceDemand
from millrace_tools.capacity.serve_demands import rank_demands, replica_demands
from millrace_tools.client.serve_details import ApplicationStatus
from millrace_tools.deploy.compatibility import check_compatibility
from millrace_tools.deploy.file_kind import SERVE, refuse_other_kind
from millrace_tools.deploy.wiring import check_addresses, check_place, check_several_nodes
from services.access.config import AccessConfig
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import InvalidInput
from services.protocol.strict import first_problem
from services.protocol.yaml_text import load_yaml
from services.reward_service.config import RewardServiceConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig

Builder = Callable[[Any], Any]
_BUILT_IN = {"name", "route_prefix", "import_path", "args"}
"""Keys of an application that are part of a built one; Serve applies other keys later."""
_ONLY_ONE = (OrchestratorConfig, TrainerConfig, WeightBusConfig)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A checked deployment file.

    Attributes:
        source: its path, for messages.
        schema: as Serve takes it.
        built: each application, built here.
        configs: each application's arguments, by its name; `replicas` as `deployments` of the
            file has it, where it does.
        demands: resources that Ray is asked for.
    """

    source: str
    schema: ServeDeploySchema
    built: tuple[BuiltApplication, ...]
    configs: Mapping[str, BaseModel]
    demands: tuple[ResourceDemand, ...]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file and check it.

        Raises:
            InvalidInput: see `check`.
        """
        data = load_yaml(path)
        refuse_other_kind(data, SERVE, str(path))
        return cls.check(data, source=str(path))

    @classmethod
    def check(cls, data: Any, *, source: str) -> Self:
        """Check everything that can be known without a cluster.

        Raises:
            InvalidInput: an unknown or missing key, a bad value, a builder that cannot be
                imported, arguments that it does not take, a deployment it does not make,
                replicas that would share nothing, or services that would not find each other.
        """
        if not isinstance(data, dict):
            raise InvalidInput(source, data, "Write a mapping with a list `applications`.")
        try:
            schema = ServeDeploySchema.model_validate(data, extra="forbid")
        except ValidationError as error:
            problem = first_problem(error, "", ServeDeploySchema)
            field = _with_names(problem.field.removeprefix(": ").split("."), data)
            raise InvalidInput(f"{source}: {field}", problem.value, problem.fix) from None
        configs: dict[str, BaseModel] = {}
        built = []
        demands: list[ResourceDemand] = []
        for application in schema.applications:
            name, route = application.name, application.route_prefix
            check_place(name, application.import_path, route, source=source)
            builder, config = _configured(application, source)
            made = _build(application, builder, config, source, schema.logging_config)
            asked = replica_demands(application, made, config)
            demands += asked
            _check_built_alone(config, asked[0], source)
            configs[name] = _scaled(config, asked)
            built.append(made)
        for name, config in configs.items():
            _check_access(name, config, schema.http_options.host, source)
        check_addresses(configs, schema, source=source)
        check_compatibility(configs, source=source)
        demands += rank_demands(configs.get("trainer"))
        return cls(
            source=source,
            schema=schema,
            built=tuple(built),
            configs=configs,
            demands=tuple(demands),
        )

    @property
    def names(self) -> list[str]:
        """Names of the applications, in the order of the file."""
        return [application.name for application in self.schema.applications]

    def replicas_of(self, name: str) -> int:
        """Replicas that the application `name` wants, over its deployments."""
        return sum(
            demand.count
            for demand in self.demands
            if demand.application == name and demand.deployment
        )

    def check_nodes(self, nodes: Nodes) -> list[str]:
        """Check that all applications fit on these nodes together.

        Returns:
            A sentence for each deployment that Serve could not scale to its maximum, or not
            replace.

        Raises:
            InvalidInput: something is larger than every node, or not all of it fits.
        """
        if nodes.count > 1:
            check_several_nodes(self.configs, self.schema, source=self.source)
        return check_capacity(self.demands, nodes, source=self.source)

    def start(self, *, changing: bool) -> None:
        """Start Serve on the connected cluster if need be, and deploy the applications.

        Args:
            changing: whether another version of the file will be deployed later: Serve then
                builds each application itself, in a process of its own, and changes only what
                differs. Otherwise the applications are deployed as they were built here.
        """
        client: Any = serve_start(
            http_options=self.schema.http_options.model_dump(),
            proxy_location=self.schema.proxy_location,
            global_logging_config=self.schema.logging_config,
        )
        if changing or any(one.model_fields_set - _BUILT_IN for one in self.schema.applications):
            client.deploy_apps(self.schema, _blocking=False)
        else:
            client.deploy_applications(
                self.built,
                wait_for_ingress_deployment_creation=False,
                wait_for_applications_running=False,
            )

    def states(self) -> list[ApplicationStatus]:
        """The status of each application on the cluster."""
        applications = serve.status().applications
        return [_state(name, applications.get(name)) for name in self.names]


def shut_down_serve(*, timeout_s: float) -> None:
    """Stop Serve and all applications on the connected cluster, if there are any.

    What is not down in time is left to the end of the cluster.
    """
    client, _ = _check_cached_client_alive()  # type: ignore[no-untyped-call]
    if client is not None:
        client.shutdown(timeout_s)
    _disconnect()  # type: ignore[no-untyped-call]


def _state(name: str, overview: Any) -> ApplicationStatus:
    if overview is None:
        return ApplicationStatus(name=name, status="NOT_STARTED")
    replicas = [deployment.replica_states for deployment in overview.deployments.values()]
    details = [deployment.message for deployment in overview.deployments.values()]
    return ApplicationStatus(
        name=name,
        status=str(getattr(overview.status, "value", overview.status)),
        running=sum(states.get("RUNNING", 0) for states in replicas),
        message="\n".join(filter(None, [overview.message, *details])),
    )


def _with_names(path: Sequence[str], data: Any) -> str:
    """A path in which applications and deployments have their names, not their list indices."""
    shown = ""
    for part in path:
        if isinstance(data, list):
            data = data[int(part)]
            shown += f"[{data.get('name', part)}]" if isinstance(data, dict) else f"[{part}]"
        else:
            data = data.get(part) if isinstance(data, dict) else None
            shown += f".{part}"
    return shown.removeprefix(".")


def _configured(application: ServeApplicationSchema, source: str) -> tuple[Builder, BaseModel]:
    """The application's builder and its argument."""
    field, path = f"{source}: {application.name}", application.import_path
    module_name, _, name = path.replace(":", ".").rpartition(".")
    try:
        builder = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{field}.import_path", path, f"Importing it fails: {error}.") from None
    signature = inspect.signature(builder) if inspect.isfunction(builder) else None
    if signature is None or len(signature.parameters) != 1:
        fix = "Name a function of one parameter that returns a Serve application."
        raise InvalidInput(f"{field}.import_path", path, fix)
    config = next(iter(signature.parameters.values())).annotation
    if not (inspect.isclass(config) and issubclass(config, BaseModel)):
        fix = "Its parameter must be annotated with a configuration class."
        raise InvalidInput(f"{field}.import_path", path, fix)
    try:
        return builder, config.model_validate(application.args)
    except ValidationError as error:
        problem = first_problem(error, "args", config)
        name = problem.field.removeprefix("args: ")
        raise InvalidInput(f"{field}.args.{name}", problem.value, problem.fix) from None


def _scaled(config: BaseModel, demands: Sequence[ResourceDemand]) -> BaseModel:
    """The arguments with the number of replicas in the `deployments` of the file, if it is there:
    Serve may change it while the application runs."""
    if not hasattr(config, "replicas"):
        return config
    return config.model_copy(update={"replicas": demands[0].count})


def _check_built_alone(config: BaseModel, demand: ResourceDemand, source: str) -> None:
    """Refuse to scale replicas that were built to be the only one: they share nothing."""
    if demand.max_count == 1:
        return
    fix = ""
    if isinstance(config, _ONLY_ONE):
        fix = "Leave it out: a deployment has one of these."
    elif isinstance(config, RouterConfig) and config.replicas == 1:
        fix = "Write router.args.replicas: a router that was built alone shares nothing."
    elif isinstance(config, RewardServiceConfig) and config.access and not config.test_set_folder:
        fix = (
            "Write reward_service.args.test_set_dir, a folder for all of them, or args.replicas: a "
            "replica that was built alone keeps test sets to itself."
        )
    if fix:
        raise InvalidInput(f"{source}: {demand.owner}", demand.max_count, fix)


def _check_access(name: str, config: BaseModel, host: str | None, source: str) -> None:
    """Refuse now a service that others reach without a key, as the service itself would."""
    access = getattr(config, "access", None)
    if not isinstance(access, AccessConfig):
        return
    try:
        access.check(host, service=f"{name}.args")
    except InvalidInput as problem:
        raise InvalidInput(f"{source}: {problem.field}", problem.value, problem.fix) from None


def _build(
    application: ServeApplicationSchema,
    builder: Builder,
    config: BaseModel,
    source: str,
    logging: LoggingConfig | None,
) -> BuiltApplication:
    field = f"{source}: {application.name}"
    try:
        app = builder(config)
    except InvalidInput as problem:
        name = problem.field.rsplit(".", 1)[-1]  # services say `field` or `service.field`
        raise InvalidInput(f"{field}.args.{name}", problem.value, problem.fix) from None
    name, route = application.name, application.route_prefix
    built = build_app(app, name=name, route_prefix=route, logging_config=logging)
    made = {deployment.name for deployment in built.deployments}
    for deployment in application.deployments:
        if deployment.name not in made:
            fix = f"{application.import_path} makes {', '.join(sorted(made))}."
            raise InvalidInput(f"{field}.deployments", deployment.name, fix)
    return built
