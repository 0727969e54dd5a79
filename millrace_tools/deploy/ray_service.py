"""A KubeRay RayService manifest: the Serve file in it, and the pods it would run on.

Only Ray's own part is declared here; pod templates are Kubernetes' and stay plain data.
Written after the fields of `ray.io/v1` in KubeRay 1.7.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel, first_problem
from services.protocol.yaml_text import NotYaml, parse_yaml


class _Camel(StrictModel):
    model_config = ConfigDict(alias_generator=to_camel)


class AuthOptions(_Camel):
    """Whether a process needs a token to join the cluster."""

    mode: Literal["disabled", "token"] = "token"
    secret_name: str | None = None


class PodGroup(_Camel):
    """Equal pods."""

    ray_start_params: dict[str, str] = Field(default_factory=dict)
    template: dict[str, Any]
    resources: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)


class HeadGroup(PodGroup):
    """The pod of the head node."""

    service_type: str | None = None
    head_service: dict[str, Any] | None = None
    enable_ingress: bool | None = None


class WorkerGroup(PodGroup):
    """Pods of worker nodes."""

    group_name: str
    replicas: int = Field(default=0, ge=0)
    min_replicas: int = Field(default=0, ge=0)
    max_replicas: int | None = Field(default=None, ge=0)
    num_of_hosts: int = Field(default=1, ge=1)
    idle_timeout_seconds: int | None = None
    scale_strategy: dict[str, Any] | None = None
    suspend: bool | None = None


class RayClusterSpec(_Camel):
    """The Ray cluster of a RayService."""

    ray_version: str | None = None
    auth_options: AuthOptions | None = None
    enable_in_tree_autoscaling: bool = False
    autoscaler_options: dict[str, Any] | None = None
    gcs_fault_tolerance_options: dict[str, Any] | None = None
    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup] = Field(default_factory=list)
    head_service_annotations: dict[str, str] | None = None
    network_policy: dict[str, Any] | None = None
    upgrade_strategy: dict[str, Any] | None = None
    managed_by: str | None = None
    suspend: bool | None = None


class RayServiceSpec(_Camel):
    """The Ray cluster and the Serve file that KubeRay runs."""

    serve_config_v2: str = Field(alias="serveConfigV2")
    ray_cluster_config: RayClusterSpec
    upgrade_strategy: dict[str, Any] | None = None
    serve_service: dict[str, Any] | None = None
    exclude_head_pod_from_serve_svc: bool | None = None
    ray_cluster_deletion_delay_seconds: int | None = None
    suspend: bool | None = None


class RayServiceManifest(_Camel):
    """The whole document."""

    api_version: Literal["ray.io/v1"]
    kind: Literal["RayService"]
    metadata: dict[str, Any]
    spec: RayServiceSpec


@dataclass(frozen=True)
class RayServiceFile:
    """A checked manifest.

    Attributes:
        source: its path, for messages.
        manifest: its content.
        serve: the Serve file in it, as plain data.
    """

    source: str
    manifest: RayServiceManifest
    serve: Any

    @classmethod
    def check(cls, data: Any, *, source: str) -> Self:
        """Check Ray's part of the manifest.

        Raises:
            InvalidInput: not a RayService, an unknown or missing key, a bad value, or a Serve
                file in it that is no YAML.
        """
        if isinstance(data, dict) and data.get("kind") != "RayService":
            fix = "Of Kubernetes' files only a RayService says what is deployed."
            raise InvalidInput(f"{source}: kind", data.get("kind"), fix)
        try:
            manifest = RayServiceManifest.model_validate(data)
        except ValidationError as error:
            raise first_problem(error, source, RayServiceManifest) from None
        try:
            serve = parse_yaml(manifest.spec.serve_config_v2)
        except NotYaml as error:
            fix = f"It is not valid YAML{error.where}."
            raise InvalidInput(f"{source}: spec.serveConfigV2", error.why, fix) from None
        return cls(source, manifest, serve)
