"""The schema of NodeClaims (`karpenter.sh/v1`): validates manifests and generates the CRD.

NodeClaims are read in bulk as `objects.NodeClaim`.

Restates: karpenter pkg/apis/v1/nodeclaim.go, nodeclaim_status.go, nodeclaim_validation.go.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api import objects
from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import (
    Duration,
    Metadata,
    Model,
    NillableDuration,
    ResourceTexts,
    Time,
    ValidatedBy,
    rules,
)
from journeyman.core.api.requirement_rules import NodeClassRef, Requirements, Taints, check_taints


class ResourcesModel(Model):
    """Resource requests that the node must satisfy."""

    requests: ResourceTexts = Field(
        default={}, description="Sum of the requests of the planned pods and the DaemonSet pods."
    )


class NodeClaimSpecSchema(Model):
    """`spec` of a NodeClaim. Immutable."""

    model_config = ConfigDict(json_schema_extra=rules(("spec is immutable", "self == oldSelf")))

    taints: Taints = Field(default=(), description="Taints of the node.")
    startup_taints: Taints = Field(
        default=(),
        description="Taints that another component removes once the node is set up; scheduling ignores them.",
    )
    requirements: Requirements = Field(description="Requirements on the labels of the node.")
    resources: Annotated[objects.ResourceRequirements, ValidatedBy(ResourcesModel)] = Field(
        default_factory=objects.ResourceRequirements, description="Resource requests that the node must satisfy."
    )
    node_class_ref: NodeClassRef = Field(description="The NodeClass, which has the cloud provider's settings.")
    termination_grace_period: Duration | None = Field(
        default=None,
        description="Time after which a terminating node's pods are deleted, whatever blocks their eviction; unlimited if unset.",
    )
    expire_after: NillableDuration = Field(
        default="720h", description="Age at which the node is replaced; Never disables expiration."
    )

    @model_validator(mode="after")
    def _taints_are_unique(self) -> Self:
        check_taints(self.taints, self.startup_taints)
        return self


class NodeClaimStatusSchema(Model):
    """`status` of a NodeClaim."""

    node_name: str = Field(default="", description="Name of the Node, once it has registered.")
    provider_id: str = Field(default="", alias="providerID", description="ID of the instance at the cloud provider.")
    image_id: str = Field(default="", alias="imageID", description="ID of the machine image of the instance.")
    capacity: ResourceTexts = Field(default={}, description="Capacity of the node.")
    allocatable: ResourceTexts = Field(default={}, description="Allocatable resources of the node.")
    conditions: Conditions = Field(default=(), description="Launched, Registered, Initialized, Ready and others.")
    last_pod_event_time: Time | None = Field(
        default=None,
        description="Time of the last pod bound to or removed from the node; consolidateAfter counts from it.",
    )


class NodeClaimSchema(Model):
    """A request for one node, and its status."""

    api_version: Literal["karpenter.sh/v1"] = "karpenter.sh/v1"
    kind: Literal["NodeClaim"] = "NodeClaim"
    metadata: Metadata = Field(default_factory=objects.ObjectMeta)
    spec: NodeClaimSpecSchema
    status: NodeClaimStatusSchema = Field(default_factory=NodeClaimStatusSchema)
