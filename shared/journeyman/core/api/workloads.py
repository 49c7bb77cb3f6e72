"""Workloads and Services, read for default topology spread constraints, which select pods by their owners."""

from __future__ import annotations

import msgspec

from journeyman.core.api.objects import APIStruct, LabelSelector, Object, PodTemplateSpec, resource


class ServiceSpec(APIStruct, frozen=True):
    """`spec` of a Service."""

    selector: dict[str, str] = msgspec.field(default_factory=dict)


class Service(Object, frozen=True):
    """A Service."""

    spec: ServiceSpec = ServiceSpec()


class ReplicationControllerSpec(APIStruct, frozen=True):
    """`spec` of a ReplicationController."""

    selector: dict[str, str] = msgspec.field(default_factory=dict)


class ReplicationController(Object, frozen=True):
    """A ReplicationController."""

    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class WorkloadSpec(APIStruct, frozen=True):
    """`spec` of a Deployment, ReplicaSet or StatefulSet."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class Workload(Object, frozen=True):
    """A Deployment, ReplicaSet or StatefulSet."""

    spec: WorkloadSpec = WorkloadSpec()


class PodTemplate(Object, frozen=True):
    """A PodTemplate."""

    template: PodTemplateSpec = PodTemplateSpec()


SERVICE = resource("", "v1", "Service", "services", Service, namespaced=True)
REPLICATION_CONTROLLER = resource(
    "", "v1", "ReplicationController", "replicationcontrollers", ReplicationController, namespaced=True
)
POD_TEMPLATE = resource("", "v1", "PodTemplate", "podtemplates", PodTemplate, namespaced=True)
DEPLOYMENT = resource("apps", "v1", "Deployment", "deployments", Workload, namespaced=True)
REPLICA_SET = resource("apps", "v1", "ReplicaSet", "replicasets", Workload, namespaced=True)
STATEFUL_SET = resource("apps", "v1", "StatefulSet", "statefulsets", Workload, namespaced=True)
